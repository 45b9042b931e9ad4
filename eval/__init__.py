"""Evidence: metrics, intervals, comparison, artifacts on disk, tracking and reports. Runs without torch."""
