"""`gemcut`, but one rank breaks after a step: `HOW RANK STEP ARGUMENTS...`; once, not when torchrun restarts it."""

import os
import signal
import sys
import threading

from foundation.goodput.journal import Journal
from gemcut.cli import main
from serving.errors import Problem, UserError


def break_down(how):
    if how == "bug":
        raise ValueError("a bug in rank 1")
    if how == "mistake":
        raise UserError(Problem("there", "this", "that", "Mend it."))
    if how == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def break_after(how, step):
    alive = Journal.alive

    def watch(journal, done):
        alive(journal, done)
        if done == step:
            break_down(how)

    Journal.alive = watch


if __name__ == "__main__":
    how, rank, step, *arguments = sys.argv[1:]
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        break_after(how, int(step))
    sys.argv = ["gemcut", *arguments]
    main()
