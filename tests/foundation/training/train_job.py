"""Trains the jobs that a file describes; at a given moment it dies, as a machine does, or is asked to leave.

Or it is no different, but that the first rank works for itself after each step.
"""

import os
import signal
import sys
import time
from pathlib import Path

import orjson

from foundation.config import FoundationConfig
from foundation.data.schema import Schema
from foundation.training.foundation_model import train_foundation
from foundation.training.job import FoundationJob


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_commit(name):
    """Die when the kernel is about to be asked for the rename that makes `name` exist."""

    def watch(event, arguments):
        if event == "os.rename" and Path(arguments[1]).name == name:
            die()

    sys.addaudithook(watch)


def work(seconds):
    done = time.thread_time() + seconds
    while time.thread_time() < done:
        pass


def main():
    meeting = os.environ.get("GEMCUT_MEETING_FILE")
    for place, job in enumerate(orjson.loads(Path(sys.argv[1]).read_bytes())):
        os.environ["GEMCUT_MEETING_FILE"] = f"{meeting}-{place}"
        run(job)


def run(job):
    words = job["moment"].split()
    ending = {"after": signal.SIGKILL, "asked": signal.SIGTERM}.get(words[0])
    steps = iter(range(int(words[-1]) - 1)) if ending else iter(int, 1)
    if words[0] == "before":
        die_before_commit(words[1])
    own_work_s = float(words[1]) if words[0] == "works" else 0.0

    def tell(share, summary):
        work(own_work_s)
        if next(steps, None) is None:
            os.kill(os.getpid(), ending)

    train_foundation(
        FoundationJob(
            schema=Schema.model_validate(job["schema"]),
            config=FoundationConfig.model_validate(job["config"]),
            store=Path(job["store"]),
            folder=Path(job["folder"]),
            until_us=job["until_us"],
            cut_us=job["cut_us"],
        ),
        progress=tell,
    )


if __name__ == "__main__":
    main()
