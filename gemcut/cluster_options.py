"""A cluster as the command line describes it, with what is assumed of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace

from foundation.parallel.cluster import HARDWARE, Assumptions, Cluster
from serving.errors import Problem, ProjectError, did_you_mean, listed

WHERE = "command line"
SHARES = {"mfu": "above 0, at most 1", "memory_share": "above 0, at most 1", "overlap": "0 to 1"}


def cluster_of(gpus: int, gpus_per_node: int, hardware: str, assumed: Iterable[str] = ()) -> Cluster:
    """The cluster that the command line describes.

    Raises:
        ProjectError: nodes that are not whole, or an assumption that is none, with every problem found.
    """
    problems: list[Problem] = []
    if gpus > gpus_per_node and gpus % gpus_per_node:
        expected, got = f"whole nodes of {gpus_per_node}", f"{gpus} GPUs"
        remedy = f"Give --gpus {gpus - gpus % gpus_per_node}, or --gpus-per-node."
        problems.append(Problem(f"{WHERE}: --gpus", expected, got, remedy))
    values = {name: value for name, value in (_assumption(text, problems) for text in assumed) if name}
    shard = int(values.get("dense_shard", 0))
    local = min(gpus, gpus_per_node)
    if shard and (gpus % shard or (local % shard and shard % local)):
        expected = "a divisor of the GPUs that fills nodes, or parts of one, evenly"
        problems.append(Problem(f"{WHERE}: --assume dense_shard", expected, str(shard), "Give 0 for a node's GPUs."))
    if problems:
        raise ProjectError(problems)
    known = Assumptions()
    typed = {name: type(getattr(known, name))(value) for name, value in values.items()}
    return Cluster(gpus, gpus_per_node, HARDWARE[hardware], replace(known, **typed))


def _assumption(text: str, problems: list[Problem]) -> tuple[str, float]:
    """(name, value) of `NAME=VALUE`; an empty name, and a problem more, where it is not one."""
    name, _, given = text.partition("=")
    names = [field.name for field in fields(Assumptions)]
    where = f"{WHERE}: --assume {text}"
    if name not in names:
        remedy = did_you_mean(name, names, "Write --assume NAME=VALUE.")
        problems.append(Problem(where, f"one of {listed(names)}", name, remedy))
        return "", 0.0
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    whole = name != "dense_shard" or value.is_integer()
    low = value > 0 if name in {"mfu", "memory_share"} else value >= 0
    if not (low and whole and value < math.inf and (name not in SHARES or value <= 1)):
        expected = SHARES.get(name, "a whole number, at least 0" if name == "dense_shard" else "a number, at least 0")
        problems.append(Problem(where, expected, given or "nothing", "Correct the value."))
        return "", 0.0
    return name, value
