"""What a step costs at the least, what it takes, and where the rest goes."""
