"""`gemcut`, but after a step a rank breaks, or kills a group of processes: `HOW RANK STEP ARGUMENTS...`.

Once, and not again when torchrun has restarted the rank.
"""

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
    if how.isdecimal():
        os.killpg(int(how), signal.SIGKILL)
    else:
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
    if os.environ["RANK"] == rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        break_after(how, int(step))
    sys.argv = ["gemcut", *arguments]
    main()
