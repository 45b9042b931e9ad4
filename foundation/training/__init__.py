"""One pass over the log in time order: score, learn, save, resume."""
