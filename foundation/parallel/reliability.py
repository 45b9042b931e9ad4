"""How often a cluster fails, how often to save, and which share of the time is then productive."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_PER_DAY = 24.0


def mean_time_between_failures_h(num_nodes: int, failures_per_1000_node_days: float) -> float:
    """Hours between failures of a job: 1 / (nodes x rate), if nodes fail independently; infinite at a rate of 0.

    Example:
        >>> round(mean_time_between_failures_h(16384 // 8, 6.50), 1)
        1.8

    Source: arXiv 2410.21680 (HPCA 2025), whose projection for 16,384 GPUs this is. Jobs of that fleet on 1,024 GPUs
    failed every 7.9 h, more often than the 28.8 h of this formula.
    """
    rate = num_nodes * failures_per_1000_node_days / 1000
    return HOURS_PER_DAY / rate if rate else math.inf


def checkpoint_interval(save: float, mtbf: float) -> float:
    """Time of work between saves that loses least, in the unit of both: sqrt(2 delta M), for delta well below M.

    Args:
        save: delta, time that a save stops training; of an asynchronous one its blocking part alone.
        mtbf: M, mean time between failures.

    Example:
        >>> round(checkpoint_interval(0.01, 7.9), 3)
        0.397

    Source: Young, CACM 1974.
    """
    return math.sqrt(2 * save * mtbf)


def lost_share(interval_h: float, *, save_h: float, mtbf_h: float, outage_h: float) -> float:
    """Unproductive hours for each productive one: delta / tau + tau / (2 M) + (R + q) / M.

    Args:
        interval_h: tau, above 0; infinite where nothing ever fails.
        save_h: delta.
        mtbf_h: M.
        outage_h: R + q, hours from a failure to the first new step.

    Source: Daly 2006, first order; restart and queue as in arXiv 2410.21680.
    """
    redone = interval_h / (2 * mtbf_h) if math.isfinite(interval_h) else 0.0
    return save_h / interval_h + redone + outage_h / mtbf_h if interval_h else outage_h / mtbf_h


@dataclass(frozen=True, slots=True)
class Reliability:
    """What failures do to a job.

    Attributes:
        mtbf_h: mean hours between failures; infinite if nothing fails.
        save_h: hours that a save stops training.
        interval_h: hours between saves that lose least; infinite if nothing fails.
        ettr: productive over all time, in (0, 1].
    """

    mtbf_h: float
    save_h: float
    interval_h: float
    ettr: float


def predicted_ettr(*, save_h: float, mtbf_h: float, outage_h: float) -> Reliability:
    """Saves at the best interval, and ETTR = 1 / (1 + lost share).

    Example:
        >>> round(predicted_ettr(save_h=0.01, mtbf_h=7.9, outage_h=0.25 + 0.05).ettr, 3)
        0.919
    """
    interval = checkpoint_interval(save_h, mtbf_h)
    lost = lost_share(interval, save_h=save_h, mtbf_h=mtbf_h, outage_h=outage_h)
    return Reliability(mtbf_h=mtbf_h, save_h=save_h, interval_h=interval, ettr=1 / (1 + lost))
