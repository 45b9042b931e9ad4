"""Where the time of a training job went, over all the processes that worked on it."""
