"""What was read of a store: another is gone on with only if it begins with the same, by the sums of `past.arrow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from foundation.data.past_sums import EVENTS, REQUESTS, STATISTICS
from foundation.data.store import Store, moment_of
from serving.errors import MismatchError, Problem

STRETCHES = 16
"""So exactly is a change of the past found: in which of so many equal parts of what was read it begins."""


class Past(TypedDict):
    """What was read of a store, so that another one can be held against it.

    Attributes:
        places: how many requests each sum is over, ascending; the last is all that were read. Empty if none were.
        times: of the last of these requests.
        first_time: of the first request.
        sums: by column of `past.arrow`.
    """

    places: list[int]
    times: list[int]
    first_time: int
    sums: dict[str, list[int]]


def past_of(store: Store, num_requests: int, *, labels: Sequence[str]) -> Past:
    """The first requests of a store with all that they could know, and labels of some objectives."""
    places = sorted({-(-num_requests * part // STRETCHES) for part in range(1, STRETCHES + 1)} - {0})
    ends = np.array(places, dtype=np.int64) - 1
    kinds = (REQUESTS, EVENTS, STATISTICS, *(f"label.{name}" for name in labels))
    return {
        "places": places,
        "times": store.times[ends].tolist(),
        "first_time": int(store.times[0]) if places else 0,
        "sums": {kind: store.past[kind][ends].tolist() for kind in kinds},
    }


def check_past(past: Past, store: Store) -> None:
    """Refuse a store that does not begin with what was read.

    Raises:
        MismatchError: what is different, and where it begins.
    """
    if not past["places"]:
        return
    num_read, read_to = past["places"][-1], past["times"][-1]
    if int(store.times[0]) > past["first_time"]:
        got = f"a store that begins at {moment_of(int(store.times[0]))}"
        remedy = "Prepare all days together, as histories, late labels and students read them all; or start again with "
        remedy += "`gemcut train --fresh`."
        raise _mismatch(f"requests from {moment_of(past['first_time'])} on", got, remedy)
    if store.manifest.num_requests < num_read:
        got = f"a store of {store.manifest.num_requests:,}"
        raise _mismatch(f"the {num_read:,} requests to {moment_of(read_to)} that were learned", got)
    ends = np.array(past["places"]) - 1
    wrong = {kind: np.flatnonzero(store.past[kind][ends] != sums) for kind, sums in past["sums"].items()}
    found = [kind for kind, places in wrong.items() if len(places)]
    if REQUESTS in found:
        found = [REQUESTS]  # with other requests all else is others' too
    problems = [_changed(kind, int(wrong[kind][0]), past, store=store) for kind in found]
    if problems:
        raise MismatchError(problems)


def _changed(kind: str, stretch: int, past: Past, *, store: Store) -> Problem:
    """What is said of a column whose sums differ from a stretch on."""
    first, last = (0, *past["places"])[stretch], past["places"][stretch]
    read, here = past["times"][-1], int(store.times[past["places"][-1] - 1])
    what = {
        EVENTS: "other events before them",
        STATISTICS: "other statistics",
        REQUESTS: "as many, but changed ones, or with other features of users, items or candidates",
    }.get(kind, f"other labels of `{kind.removeprefix('label.')}`, which had been learned")
    if kind == REQUESTS and here != read:
        what = f"others, and {'more' if here < read else 'fewer'} of them by then"
    where = f"requests {first + 1:,} to {last:,}, to {moment_of(past['times'][stretch])}"
    return _mismatch(f"{where}, as they were learned", what).problems[0]


def _mismatch(
    expected: str,
    got: str,
    remedy: str = "The past may not change. Restore these tables, or start again with `gemcut train --fresh`.",
) -> MismatchError:
    return MismatchError(Problem("checkpoint: the log so far", expected, got, remedy))
