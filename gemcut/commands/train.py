"""`gemcut train`: one pass of the foundation model over the log; each row is scored before it is learned."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gemcut.account import goodput_figures, rank_figures, tell_goodput, tell_ranks, tell_spread
from gemcut.collecting import collection_paused
from gemcut.console import Screen, Tell
from gemcut.damaged import set_damaged_aside
from gemcut.project import LoadedProject
from gemcut.tracking import start_run
from gemcut.workspace import Workspace
from serving.errors import Problem, ProjectError

if TYPE_CHECKING:
    from eval.progressive import StreamMetrics
    from eval.tracking import Tracker
    from foundation.efficiency.measures import PassEfficiency
    from foundation.goodput.ranks import RanksAccount
    from foundation.goodput.report import Goodput
    from foundation.training.foundation_model import FoundationReport
    from foundation.training.job import FoundationJob


def train(
    loaded: LoadedProject,
    screen: Screen,
    *,
    fresh: bool = False,
    until: str | None = None,
    started_s: float | None = None,
) -> dict[str, Any]:
    """Train, or go on from the newest checkpoint; `fresh` throws checkpoints away first.

    Where nothing is left to learn, the figures are those of the finished pass, and there is no speed.

    `until` is a time at or after the cut, or "end" for all of the log; the cut if absent. `started_s` as for
    `train_foundation`.
    Under torchrun every rank calls this; the first one prints, tracks and writes shared files.
    """
    with collection_paused():
        from foundation.data.store import moment_of
        from foundation.goodput.journal import read_journal
        from foundation.goodput.ranks import ranks_account
        from foundation.goodput.report import goodput_of
        from foundation.training.foundation_model import JOURNAL_FILE, train_foundation

    space = Workspace(loaded)
    job = space.foundation_job(end_of_pass(space, until))
    if os.environ.get("RANK", "0") != "0":
        train_foundation(job)
        return {}
    with space.training_alone("foundation"):
        if fresh and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # a restart goes on
            shutil.rmtree(space.foundation, ignore_errors=True)
        set_damaged_aside([job.folder / "checkpoints"], screen)
        job = _to_its_end(job, screen)
        _tell_growth(job, screen)
        with start_run(loaded, space.foundation, name="foundation", sends=False) as tracker:
            tracker.log_params(_params(loaded))
            with screen.progress("train") as tell:
                report = train_foundation(job, progress=_after_a_step(tracker, tell), started_s=started_s)
            found = _Found(
                report=report,
                efficiency=_efficiency(job, report),
                ranks=ranks_account(report.ranks),
                account=goodput_of(read_journal(job.folder / JOURNAL_FILE)),
            )
            _track(job, found, tracker)
    _tell(job, found, screen)
    return {
        "checkpoint": report.stream.checkpoint,
        "until": moment_of(job.until_us),
        "efficiency": asdict(found.efficiency) if found.efficiency else None,
        "goodput": asdict(found.account) if found.account else None,
        "ranks": asdict(found.ranks) if found.efficiency else None,
        "spread": asdict(report.spread) if report.spread else None,
        "progressive": {k: asdict(v) for k, v in report.progressive.items()},
        "progressive_from_cut": {k: asdict(v) for k, v in report.progressive_from_cut.items()},
    }


@dataclass(frozen=True, slots=True)
class _Found:
    """What a run has to say of itself; `efficiency` is None where nothing was left to learn."""

    report: FoundationReport
    efficiency: PassEfficiency | None
    ranks: RanksAccount
    account: Goodput | None


def _track(job: FoundationJob, found: _Found, tracker: Tracker) -> None:
    report = found.report
    steps = report.stream.num_steps
    tracker.log_metrics(_figures("progressive", report.progressive), step=steps)
    if job.until_us > job.cut:
        tracker.log_metrics(_figures("progressive_from_cut", report.progressive_from_cut), step=steps)
    if found.efficiency is not None:
        tracker.log_metrics(asdict(found.efficiency) | rank_figures(found.ranks), step=steps)
    if found.account is not None:
        tracker.log_metrics(goodput_figures(found.account), step=steps)
    tracker.log_artifact(job.folder / "report.json")


def _after_a_step(tracker: Tracker, tell: Tell) -> Tell:
    """Tell of each step; MLflow, which takes seconds to import, is not waited for by the first one."""

    def told(share: float, words: str) -> None:
        tracker.begin_sending()
        tell(share, words)

    return told


def _efficiency(job: FoundationJob, report: FoundationReport) -> PassEfficiency | None:
    from foundation.efficiency.measures import pass_efficiency

    return pass_efficiency(job, report.stream) if report.stream.has_learned else None


def end_of_pass(space: Workspace, until: str | None) -> int:
    """Microseconds since 1970 UTC at which a pass ends by `--until`: a time, "end", or the cut if absent."""
    from foundation.data.store import microseconds, read_manifest

    if until is None:
        return space.until_us
    if until == "end":
        return max(read_manifest(space.store).last_time + 1, space.until_us)
    where, cut = "command line: --until", space.loaded.project.split.test_from
    try:
        moment = microseconds(datetime.fromisoformat(until))
    except ValueError as error:
        remedy = "Write it as `2024-03-01T00:00:00`; no time zone means UTC."
        raise ProjectError(Problem(where, "a time, or `end`", f"`{until}`", remedy)) from error
    if moment < space.until_us:
        remedy = "Go on to a later time, or move `split.test_from`."
        raise ProjectError(Problem(where, f"a time at or after `split.test_from`, {cut.isoformat()}", until, remedy))
    return moment


def _to_its_end(job: FoundationJob, screen: Screen) -> FoundationJob:
    """The job as it will be done: an earlier run that went further is not cut short, and that is said."""
    from foundation.data.store import moment_of
    from foundation.training.foundation_model import end_of_training

    end = end_of_training(job)
    if end > job.until_us:
        screen.say(f"this training was begun to go to {moment_of(end)}; going on to that")
    return replace(job, until_us=end)


def _tell_growth(job: FoundationJob, screen: Screen) -> None:
    """What is new since the newest checkpoint; refuses what may not be, before anything is loaded."""
    from foundation.data.store import read_manifest
    from foundation.training.foundation_model import growth

    for table, number in growth(job, read_manifest(job.store).fingerprint).items():
        screen.say(f"table {table}: {number:,} new value{'s' if number > 1 else ''}")


def _figures(period: str, progressive: dict[str, StreamMetrics]) -> dict[str, float]:
    found: dict[str, float] = {}
    for objective, metrics in progressive.items():
        found[f"{period}/ne/{objective}"] = metrics.normalized_entropy
        found[f"{period}/auc/{objective}"] = metrics.auc
        found[f"{period}/calibration/{objective}"] = metrics.calibration
    return found


def _params(loaded: LoadedProject) -> dict[str, object]:
    config = loaded.project.foundation
    return {
        "project_digest": loaded.digest,
        **{f"model/{name}": value for name, value in config.model.model_dump().items()},
        **{f"training/{name}": value for name, value in config.training.model_dump().items()},
    }


def _tell(job: FoundationJob, found: _Found, screen: Screen) -> None:
    from foundation.data.store import moment_of

    report, efficiency = found.report, found.efficiency
    done = "trained" if efficiency else "nothing was left to learn; trained"
    screen.say(f"[green]{done}[/green] to {moment_of(job.cut)}; each row was scored before it was learned from:")
    _print(report.progressive, screen)
    if job.until_us > job.cut:
        screen.say(f"and from there to {moment_of(job.until_us)}, still learning:")
        _print(report.progressive_from_cut, screen)
    if efficiency is None:
        return
    screen.say(
        f"  {efficiency.rows_per_s:,.0f} rows/s, {efficiency.events_per_s:,.0f} events/s, "
        f"waited {efficiency.data_wait_ratio:.1%} of the time for data, E2E MFU {efficiency.e2e_mfu:.1%}"
    )
    if found.account is not None:
        tell_goodput(found.account, efficiency.e2e_mfu, screen)
        tell_ranks(found.ranks, screen)
        tell_spread(report.spread, job.config.parallel, screen)


def _print(progressive: dict[str, StreamMetrics], screen: Screen) -> None:
    for objective, metrics in progressive.items():
        screen.say(
            f"  {objective:<14} rows {metrics.num_rows:>11,}  NE {metrics.normalized_entropy:.4f}  "
            f"AUC {metrics.auc:.4f}  calibration {metrics.calibration:.3f}"
        )
