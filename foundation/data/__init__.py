"""From the tables that a user brings to batches of requests."""
