"""A training of two ranks under torchrun, killed again and again, beside one that is left alone: are they the same?

`python -m benchmarks.torture --kills 20` makes its own synthetic log. PASS, exit code 0: the same parameters, optimizer
states, averages, metrics and soft labels bit by bit; each row learned from once; damaged checkpoints told and not used.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
import yaml
from safetensors import safe_open

from benchmarks.command import command_line, run
from benchmarks.killing import Job, Killed, TortureError, planned
from benchmarks.lost_time import lost_time
from benchmarks.report import show
from eval.artifacts import write_json
from foundation.data.store import Store
from foundation.goodput.journal import Began, Event, read_journal
from foundation.training.checkpoint import list_checkpoints, read_manifest, read_state
from foundation.training.foundation_model import JOURNAL_FILE
from gemcut.commands.prepare import prepare
from gemcut.console import Screen
from gemcut.demo_data.synthetic import make_data
from gemcut.project import load_project
from gemcut.workspace import Workspace

EXAMPLE = Path(__file__).parents[1] / "examples" / "synthetic" / "project.yaml"
PROJECT = "project.yaml"
REQUESTS, REQUESTS_A_KILL = 600, 300
MODEL = {"width": 8, "encoder_events": 8, "interaction_tokens": 2, "hidden": 16}
CHECKPOINT_EVERY = 30
TRAINING = {"batch_requests": 8, "checkpoint_every": CHECKPOINT_EVERY, "timeout": "60s"}
HOUR_US = 3600 * 10**6
GROUPS = ("model.", "table_optimizer.", "dense_optimizer.", "average")


@dataclass(frozen=True, slots=True)
class Check:
    """Something that has to be so, and what was found."""

    name: str
    passed: bool
    found: str


def torture(folder: Path, *, num_kills: int, seed: int, screen: Screen) -> dict[str, Any]:
    """Train twice, once under fire → what was found, with `passed`.

    Args:
        folder: gets the log, and the work of both trainings.
        num_kills: at least 2.
        seed: of the moments; the log is the same.
        screen: is told what happens.
    """
    make_log(folder / "log", REQUESTS + REQUESTS_A_KILL * num_kills)
    screen.say("training, left alone")
    alone = Job(shutil.copytree(folder / "log", folder / "alone") / PROJECT)
    with alone:
        alone.finish()
    quiet = read_journal(alone.folder / JOURNAL_FILE)
    job = Job(shutil.copytree(folder / "log", folder / "killed") / PROJECT, *_paces(quiet))
    kills: list[Killed] = []
    with job:
        for number, kill in enumerate(planned(num_kills, np.random.default_rng(seed)), 1):
            screen.say(f"kill {number} of {num_kills}: {kill.victim}, {kill.moment}")
            kills.append(job.hit(kill))
        job.finish()
    events = read_journal(job.folder / JOURNAL_FILE)
    began = [event.step for event in events if isinstance(event, Began)]
    checks = [*_same(alone, job), *_once(job), *_hits(job, kills, began)]
    return {
        "passed": all(check.passed for check in checks),
        "checks": [asdict(check) for check in checks],
        "kills": [_told(kill, began) for kill in kills],
        "lost_time": asdict(lost_time(quiet, events, kills)),
    }


def make_log(folder: Path, num_requests: int) -> None:
    """A synthetic log, its project and its store; a training of it has a step for about five requests."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["foundation"] = {"model": MODEL, "training": TRAINING}
    make_data(folder / "data", num_requests=num_requests)
    (folder / PROJECT).write_text(yaml.safe_dump(document, sort_keys=False))
    prepare(load_project(folder / PROJECT), Screen(), memory="2GB", threads=2)


def _paces(events: Sequence[Event]) -> tuple[float, float]:
    """Seconds of a start, and between two checkpoints."""
    began, ended = events[0], events[-1]
    assert isinstance(began, Began), "nothing killed it"
    return began.time_s - began.started_s, (ended.time_s - began.time_s) / ended.step * CHECKPOINT_EVERY


def _same(alone: Job, job: Job) -> Iterator[Check]:
    """Everything that the last checkpoint, the report and the soft labels hold."""
    ours, theirs = (tensors_of(list_checkpoints(one.checkpoints)[-1]) for one in (job, alone))
    for group in GROUPS:
        names = [name for name in theirs if name.partition("/")[2].startswith(group)]
        equal = [name for name in names if ours.get(name) == theirs[name]]
        yield Check(f"{group} bit by bit", len(equal) == len(names) > 0, f"{len(equal)} of {len(names)} tensors")
    yield Check("no tensor more", ours.keys() == theirs.keys(), f"{len(ours)} of {len(theirs)}")
    reports = [json.loads((one.folder / "report.json").read_bytes())["progressive"] for one in (job, alone)]
    yield Check("progressive metrics", reports[0] == reports[1], ", ".join(reports[0]))
    labels = [soft_labels_of(one.folder / "soft_labels") for one in (job, alone)]
    yield Check("soft labels, and what was learned before", labels[0].equals(labels[1]), f"{len(labels[0]):,} rows")


def _once(job: Job) -> Iterator[Check]:
    """What the model itself counted, where its readers are, and the rows that it scored, against the log's own."""
    space = Workspace(load_project(job.project))
    newest = list_checkpoints(job.checkpoints)[-1]
    step = read_manifest(newest).step
    (counted,) = (value[2] for name, value in tensors_of(newest).items() if name.endswith("/average_steps"))
    num_updates = int(np.frombuffer(counted, dtype=np.float32)[0])
    yield Check("the parameters had as many updates as the pass has steps", num_updates == step, f"{num_updates:,}")
    times = Store.open(space.store, space.loaded.project).times
    for delay, place in read_state(newest)["visits"].items():
        due = int(((times < space.until_us) & (times + int(delay) <= space.until_us)).sum())
        yield Check(
            f"requests read, labels {int(delay) / HOUR_US:.0f} h late",
            place["next"] == due,
            f"{place['next']:,} of {due:,}",
        )
    rows = soft_labels_of(job.folder / "soft_labels")["row_id"].to_numpy()
    logged = pq.read_table(job.project.parent / "data" / "impressions.parquet", columns=["time"])["time"]
    due = int((logged.to_numpy().astype("datetime64[us]").astype(np.int64) < space.until_us).sum())
    once = len(rows) == len(np.unique(rows)) == due
    yield Check("each row of the log scored, then learned from, once", once, f"{len(rows):,} of {due:,}")


def _hits(job: Job, kills: Sequence[Killed], began: Sequence[int]) -> Iterator[Check]:
    """That the kills hit what they were to hit, and that what came after started at the newest whole checkpoint."""
    certain = sum(kill.kill.moment == "saving" and kill.kill.share == 0 for kill in kills)
    inside = sum(kill.in_save for kill in kills)
    yield Check("kills inside a save", inside >= max(certain, 1), f"{inside} of {len(kills)}")
    whole = [kill for kill in kills if kill.kill.victim == "all"]
    right = [kill for kill in whole if began[kill.num_began] == step_of(kill.newest)]
    yield Check("gone on from the newest whole checkpoint", right == whole, f"{len(right)} of {len(whole)}")
    said = job.output.read_text(errors="replace")
    for kill in kills:
        if kill.damaged is not None:
            place = f"{kill.damaged.parent.name}/{kill.damaged.name}"
            is_told = "damaged checkpoint" in said and place in said
            kept = kill.damaged.parent.with_name(f"damaged-{kill.damaged.parent.name}").is_dir()
            yield Check(f"newest checkpoint {kill.kill.damage}: told, and set aside", is_told and kept, place)


def step_of(checkpoint: str | None) -> int:
    """The step that a checkpoint is of; the beginning without one."""
    return int(checkpoint.removeprefix("step-")) if checkpoint else 0


def tensors_of(checkpoint: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """(dtype, shape, bytes) of every tensor, by FILE/NAME: a table has a part in each rank's file."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                found[f"{path.name}/{name}"] = (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
    return found


def soft_labels_of(folder: Path) -> pa.Table:
    """All parts, in the order of rows; another number of attempts cuts the parts elsewhere."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet"))).sort_by("row_id")


def _told(kill: Killed, began: Sequence[int]) -> dict[str, Any]:
    return {
        "moment": kill.kill.moment,
        "victim": kill.kill.victim,
        "in_save": kill.in_save,
        "damage": kill.kill.damage or "whole",
        "newest": kill.newest,
        "went_on_at": f"step {began[kill.num_began]:,}",
    }


def _show(found: dict[str, Any]) -> None:
    columns = ("victim", "moment", "in_save", "damage", "went_on_at")
    kills = [[str(number), *(str(kill[name]) for name in columns)] for number, kill in enumerate(found["kills"], 1)]
    show("kills", ["", "killed", "while", "in a save", "newest checkpoint", "went on at"], kills)
    lost = found["lost_time"]
    ettr = f"ETTR {lost['measured_ettr']:.1%}, predicted {lost['predicted_ettr']:.1%} (Young, Daly)"
    of = f"M {lost['mtbf_s']:.1f} s, δ {lost['save_s']:.3f} s, τ {lost['interval_s']:.2f} s, R {lost['start_s']:.1f} s"
    seconds = [(part["name"], part["why"], part["predicted_s"], part["measured_s"]) for part in lost["parts"]]
    seconds.append(("all", "", sum(part[2] for part in seconds), sum(part[3] for part in seconds)))
    lines = [[*words, f"{guess:.1f}", f"{got:.1f}", f"{got - guess:+.1f}"] for *words, guess, got in seconds]
    show(f"{ettr}; {of}", ["seconds", "because", "predicted", "measured", "difference"], lines)
    checks = [[check["name"], check["found"], "pass" if check["passed"] else "FAIL"] for check in found["checks"]]
    show("checks", ["", "found", "verdict"], checks)


app = command_line()


@app.command(help=__doc__)
def main(
    *,
    kills: Annotated[int, typer.Option(min=2, help="How many SIGKILLs.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of their moments.")] = 0,
    folder: Annotated[Path | None, typer.Option(help="Keep all files here; a folder that does not exist.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write what was found as JSON.")] = None,
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = torture(folder or Path(scratch) / "torture", num_kills=kills, seed=seed, screen=Screen())
        except TortureError as error:
            print(f"{error}\nFAIL")
            raise typer.Exit(1) from error
    _show(found)
    if out is not None:
        write_json(out, found)
    print("PASS" if found["passed"] else "FAIL")
    raise typer.Exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    run(app)
