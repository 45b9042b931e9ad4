"""Visits with their ids already on their way: the next one's travel while the one before is learned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from foundation.model.inputs import to_tensors
from foundation.training.trainer import Prepared, Trainer
from foundation.training.visits import Visit, Visits, VisitsPlace


@dataclass(frozen=True, slots=True)
class Coming:
    """A visit that is ready to be learned.

    Attributes:
        place: where a run that has learned this visit, and no later one, goes on.
        waited_s: seconds that the readers were waited for.
    """

    visit: Visit
    prepared: Prepared
    place: VisitsPlace
    waited_s: float


def coming(trainer: Trainer, visits: Visits, *, overlap: bool) -> Iterator[Coming]:
    """Each visit, prepared; with `overlap` the one after it is prepared before it is handed out.

    What is learned is the same to the bit: preparing reads no parameter.
    """
    ahead: Coming | None = None
    for ready in _prepared(trainer, visits):
        if not overlap:
            yield ready
            continue
        if ahead is not None:
            yield ahead
        ahead = ready
    if ahead is not None:
        yield ahead


def _prepared(trainer: Trainer, visits: Visits) -> Iterator[Coming]:
    unread = iter(visits)
    while True:
        asked = time.perf_counter()
        visit = next(unread, None)
        if visit is None:
            return
        waited = time.perf_counter() - asked
        tensors = to_tensors(visit.batch, trainer.world.device)
        yield Coming(visit, trainer.prepare(tensors), visits.place, waited)
