"""What a good engineer would build in a day, and the comparison with it; run from the repository, never installed."""
