"""Where everything of a project lies: the work folder's layout, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval.locks import only_one
from gemcut.project import LoadedProject

if TYPE_CHECKING:
    from foundation.training.job import FoundationJob
    from transfer.distill import Arm, StudentJob

LAST_BREATH_S = 10.0
"""What is left of a training whose launcher was killed ends by itself within this time."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths under the work folder, and the jobs that read and write them.

    WORK/
        store/                            request store
        foundation/                       checkpoints/, soft_labels/ (progressive), soft_labels_from_cut/, report.json
        soft_labels/test/                 the scores of the test period, by the model at the cut
        students/PLACEMENT/seed-N/ARM/    weights, test predictions, result; ARM is student or twin
        bundles/PLACEMENT/                DIGEST/ the bundle, current the name of the newest, requests.jsonl for replay
        verdicts/PLACEMENT.json           the latency gate's
        report/                           report.html, report.json, metrics.json
        locks/                            `foundation`, or a placement's name: held by who trains there
        mlflow.db, mlartifacts/           tracking, unless another server is named
    """

    loaded: LoadedProject

    @property
    def work(self) -> Path:
        """The work folder, absolute."""
        return self.loaded.workdir

    @property
    def store(self) -> Path:
        """Folder of the request store."""
        return self.work / "store"

    @property
    def foundation(self) -> Path:
        """Folder of the foundation model's training."""
        return self.work / "foundation"

    @property
    def progressive_labels(self) -> Path:
        """Soft labels of the training period, written while the foundation model trained."""
        return self.foundation / "soft_labels"

    @property
    def test_labels(self) -> Path:
        """Soft labels of the test period, by the model as it was at the cut."""
        return self.work / "soft_labels" / "test"

    @property
    def report(self) -> Path:
        """Folder of the newest evaluation."""
        return self.work / "report"

    @contextmanager
    def training_alone(self, *names: str) -> Iterator[None]:
        """Hold the locks of what is trained, `foundation` or placements, within the block.

        Raises:
            UserError: another process is at it, and stays.
        """
        with ExitStack() as held:
            for name in names:
                what = f"{self.work}: training of {name}"
                held.enter_context(only_one(self.work / "locks" / name, what=what, patience_s=LAST_BREATH_S))
            yield

    def student(self, placement: str, seed: int, arm: Arm) -> Path:
        """Folder of one student or twin."""
        return self.work / "students" / placement / f"seed-{seed}" / arm

    def bundles(self, placement: str) -> Path:
        """Folder of a placement's bundles."""
        return self.work / "bundles" / placement

    def verdict(self, placement: str) -> Path:
        """File of a placement's newest latency verdict."""
        return self.work / "verdicts" / f"{placement}.json"

    @property
    def until_us(self) -> int:
        """The training cut, microseconds since 1970 UTC."""
        from foundation.data.store import microseconds

        return microseconds(self.loaded.project.split.test_from)

    def foundation_job(self, until_us: int | None = None) -> FoundationJob:
        """The training of the foundation model, to the cut or on to a later time."""
        from foundation.training.job import FoundationJob

        project = self.loaded.project
        return FoundationJob(
            schema=project,
            config=project.foundation,
            store=self.store,
            folder=self.foundation,
            until_us=self.until_us if until_us is None else until_us,
            cut_us=self.until_us,
        )

    def student_job(self, placement: str, seed: int, arm: Arm) -> StudentJob:
        """The training of one student or twin."""
        from transfer.distill import StudentJob

        project = self.loaded.project
        return StudentJob(
            schema=project,
            name=placement,
            placement=project.placements[placement],
            arm=arm,
            seed=seed,
            store=self.store,
            soft_labels=self.progressive_labels,
            folder=self.student(placement, seed, arm),
            until_us=self.until_us,
        )
