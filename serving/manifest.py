"""What a bundle says of itself: everything that serving needs to know about a model.

A bundle is a write-once folder, `model.onnx` + `model.onnx.data` + `manifest.json`; `docs/bundle.md` describes it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.gate.policy import Budget
from serving.ids import IdSpace
from serving.numbers import NumberRule

FORMAT = 2
MODEL_FILE = "model.onnx"
MANIFEST_FILE = "manifest.json"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Part(BaseModel):
    """A part of the manifest: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class IdInput(Part):
    """A categorical feature: raw value → row of `tables[table]`."""

    kind: Literal["id"] = "id"
    name: str
    table: str


class NumberInput(Part):
    """A numeric feature: raw number → model input by `rule`."""

    kind: Literal["number"] = "number"
    name: str
    rule: NumberRule


Input = Annotated[IdInput | NumberInput, Field(discriminator="kind")]


class HistoryInput(Part):
    """The newest `limit` events of one log, oldest first, each strictly before the request."""

    log: str
    limit: int = Field(ge=1)
    features: tuple[Input, ...]


class Provenance(Part):
    """Where the model came from; None where nothing of the kind took part (a twin has no teacher)."""

    project: str
    project_digest: Sha256
    schema_digest: Sha256
    data_fingerprint: Sha256
    teacher_digest: Sha256 | None = Field(description="Digest of the training run whose soft labels it learned.")
    student_digest: Sha256
    seed: int
    versions: dict[str, str]


class Parity(Part):
    """How far the served probabilities were from the trained model's, on ordinary and hostile requests."""

    num_requests: int
    num_rows: int
    largest_error: dict[str, float]
    tolerance: float
    order_flips: dict[str, int] = Field(description="Per objective: pairs in the top 10 whose order differs.")


class FileEntry(Part):
    """What a file of the bundle must be: its digest and its size."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class Manifest(Part):
    """The bundle's contract.

    Graph inputs, all int64 or float32; an input of zero width does not exist in the graph:
    `request_ids` [1, F], `request_numbers` [1, G], `candidate_ids` [N, F], `candidate_numbers` [N, G], and for each
    history `history_ids.LOG` [T, F], `history_numbers.LOG` [T, G]; and, always, `history_ages.LOG` [T] float32: days
    from the event to the request. Columns are in the order of the features below, ids and numbers apart.
    Graph output: `probabilities` [N, K] float32, objectives in order.
    """

    format: Literal[2] = FORMAT
    placement: str
    surface: str
    objectives: tuple[str, ...]
    tables: dict[str, IdSpace]
    request: tuple[Input, ...]
    candidate: tuple[Input, ...]
    histories: tuple[HistoryInput, ...]
    max_candidates: int = Field(default=4096, ge=1)
    opset: int
    budget: Budget
    provenance: Provenance
    parity: Parity
    files: dict[str, FileEntry]
