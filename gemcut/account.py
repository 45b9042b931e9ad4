"""Where the time of a training went, and what each rank did in it: lines for people, figures for the tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gemcut.console import Screen

if TYPE_CHECKING:
    from foundation.config import ParallelConfig
    from foundation.goodput.ranks import RanksAccount
    from foundation.goodput.report import Goodput
    from foundation.parallel.sharding import Spread

SHOWN_RANKS = 8
GIB = 2**30


def goodput_figures(account: Goodput) -> dict[str, float]:
    """Seconds by part, for the tracker."""
    figures = {name: value for name, value in asdict(account).items() if name != "startup_phases_s"}
    phases = {f"startup/{name.replace(' ', '_')}_s": value for name, value in account.startup_phases_s.items()}
    return {f"goodput/{name}": float(value) for name, value in (figures | phases).items()}


def rank_figures(account: RanksAccount) -> dict[str, float]:
    """By rank, as `ranks/NAME/RANK`, and of all ranks together, for the tracker; without what was not measured."""
    found: dict[str, float] = {}
    for name, value in asdict(account).items():
        if isinstance(value, tuple):
            found |= {f"ranks/{name}/{rank}": float(one) for rank, one in enumerate(value)}
        elif value is not None:
            found[f"ranks/{name}"] = float(value)
    return found


def tell_goodput(account: Goodput, mfu: float, screen: Screen) -> None:
    """Where the job's time went, what the last start took, and what is left of the machine's peak over all of it."""
    parts = {
        "start": account.startup_s,
        "data wait": account.data_wait_s,
        "saving": account.checkpoint_stall_s,
        "done again": account.redone_s,
        "down": account.down_s,
    }
    lost = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items() if seconds >= 0.05)
    attempts = f" in {account.num_attempts} attempts" if account.num_attempts > 1 else ""
    whole = f"{account.goodput:.1%} of {account.wall_s:,.1f} s{attempts}"
    screen.say(f"  goodput {whole}, ETTR {account.ettr:.1%}; the rest: {lost}")
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in account.startup_phases_s.items())
    screen.say(f"  the last start: {phases}")
    screen.say(f"  E2E MFU x ETTR {mfu * account.ettr:.1%}: of what the machine could have computed in all that time")


def tell_ranks(account: RanksAccount, screen: Screen) -> None:
    """What each rank did, which one was the slowest, memory and energy."""
    if len(account.rows_per_s) > 1:
        screen.say(f"  rows/s by rank {_by_rank([f'{rate:,.0f}' for rate in account.rows_per_s])}")
        lag = "not measured on GPUs" if account.lag is None else f"{account.slowest}, which the others wait for "
        lag += "" if account.lag is None else f"{account.lag:.1%} of the time"
        screen.say(f"  slowest rank {lag}")
    memory = _by_rank([f"{peak / GIB:.2f}" for peak in account.peak_memory_bytes])
    if account.peak_gpu_memory_bytes:
        memory += f"; of the GPU {_by_rank([f'{peak / GIB:.2f}' for peak in account.peak_gpu_memory_bytes])}"
    screen.say(f"  peak memory {memory} GiB; {_energy(account)}")


def _by_rank(values: Sequence[str]) -> str:
    """All of a few, the ends of many.

    Example:
        >>> _by_rank(["7", "8"]), _by_rank([str(rank) for rank in range(100)])
        ('7, 8', '0, 1, 2, 3 … 96, 97, 98, 99')
    """
    half = SHOWN_RANKS // 2
    if len(values) <= SHOWN_RANKS:
        return ", ".join(values)
    return f"{', '.join(values[:half])} … {', '.join(values[-half:])}"


def _energy(account: RanksAccount) -> str:
    sources = {"processors": account.cpu_joules, "GPUs": account.gpu_joules}
    known = [f"{name} {joules:,.0f} J" for name, joules in sources.items() if joules is not None]
    return f"energy {', '.join(known) if known else 'not measured'}"


def tell_spread(spread: Spread | None, asked: ParallelConfig, screen: Screen) -> None:
    """Which ranks hold which tables, by kind, and what of `asked` does not apply to so few of them."""
    if spread is None:
        return
    for name, size in (("sharding_group", asked.sharding_group), ("dense_shard", asked.dense_shard)):
        if size is not None and size > spread.num_ranks:
            ranks = "one rank" if spread.num_ranks == 1 else f"{spread.num_ranks} ranks"
            screen.say(f"  foundation.parallel.{name}: {size} is more than there are; taken as the {ranks} of this run")
    if asked.tables and spread.sharding_group == 1:
        screen.say("  foundation.parallel.tables: not used, since one rank holds all tables whole")
    if spread.num_ranks == 1:
        return
    copies = spread.num_table_copies
    in_copies = f"in {copies} copies, each over {spread.sharding_group}" if copies > 1 else "over all"
    by_kind: dict[str, list[str]] = {}
    for table, placement in spread.tables.items():
        where = "" if placement["kind"] == "row_wise" else f" ({', '.join(map(str, placement['ranks']))})"
        by_kind.setdefault(placement["kind"], []).append(table + where)
    screen.say(f"  tables {in_copies} ranks; dense blocks over {spread.dense_shard}")
    for kind, tables in by_kind.items():
        screen.say(f"    {kind}: {', '.join(tables)}")
