"""How a command ends in failure: told once, however many ranks it has."""

from __future__ import annotations

import time

from rich.markup import escape

from foundation.parallel.failures import (
    Failure,
    FollowError,
    PeerError,
    first_failure,
    num_ranks,
    own_rank,
    tell_launcher,
)
from gemcut.console import Screen
from serving.errors import UserError

AFTER_THE_FIRST_S = 3.0
"""torchrun takes the rank that ends first for the one that failed first, and sends the others SIGTERM."""


def tell_failure(error: Exception, screen: Screen) -> int | None:
    """Say what ended this process: all of it on the rank that failed first, a line on one that ended for that.

    Ranks that fail alike, as by the same mistake of the user, are one failure.

    Returns:
        The exit code; None for a bug of ours that nobody has told yet, whose stack trace is still to be shown.
    """
    own = Failure.of(error)
    first = error.first if isinstance(error, FollowError) else first_failure(own)
    tell_launcher(first)
    if not first.is_own:
        if first.text != own.text:
            screen.say(escape(str(FollowError(first))))
        time.sleep(AFTER_THE_FIRST_S)
        return first.exit_code
    if num_ranks() > 1 and not isinstance(error, PeerError):
        screen.say(f"[bold red]rank {own_rank()} of {num_ranks()} failed first[/bold red], the others end with it:")
    if isinstance(error, UserError | PeerError):
        screen.problems(error)
        return own.exit_code
    return None
