"""Settings of every test, made before anything is imported that reads them."""

import os

# One thread: the same numbers bit by bit, and no fight over the cores between test processes.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings

# Not derandomised would mean a failure that the next run hides; a deadline would time the machine, not the code.
settings.register_profile("gemcut", derandomize=True, deadline=None)
settings.load_profile("gemcut")
