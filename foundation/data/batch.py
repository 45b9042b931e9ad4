"""What the reader yields: a batch of requests, jagged, in plain numpy.

Shape letters: B requests, C candidates of the whole batch, T events of the whole batch, F id features,
G number features, K objectives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class History:
    """Events of one log, oldest first within a request, each strictly before its request's time.

    Attributes:
        offsets: [B + 1] int64; events of request b are offsets[b]:offsets[b + 1]. Non-decreasing, starts at 0.
        ids: [T, F] int64, rows of `schema.event_features(log)`'s tables.
        numbers: [T, G] float32, encoded.
        times: [T] int64, microseconds since 1970 UTC.
    """

    offsets: Int64Array
    ids: Int64Array
    numbers: Float32Array
    times: Int64Array


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests with their candidates and histories.

    Attributes:
        positions: [B] int64, place of each request in the store, ascending.
        times: [B] int64, microseconds since 1970 UTC.
        users: [B] int64, row of the user in the store.
        surfaces: [B] int64, place of the surface in `schema.surfaces`.
        ids: [B, F] int64, rows of `schema.request_features()`'s tables.
        numbers: [B, G] float32, encoded.
        candidate_offsets: [B + 1] int64; candidates of request b are candidate_offsets[b]:candidate_offsets[b + 1].
        candidate_ids: [C, F] int64, rows of `schema.candidate_features()`'s tables.
        candidate_numbers: [C, G] float32, encoded.
        row_ids: [C] int64, stable keys of the rows.
        labels: [C, K] float32, 0 or 1, NaN where unknown; objectives in the schema's order.
        histories: by log name, in the schema's order.
    """

    positions: Int64Array
    times: Int64Array
    users: Int64Array
    surfaces: Int64Array
    ids: Int64Array
    numbers: Float32Array
    candidate_offsets: Int64Array
    candidate_ids: Int64Array
    candidate_numbers: Float32Array
    row_ids: Int64Array
    labels: Float32Array
    histories: dict[str, History]

    @property
    def num_requests(self) -> int:
        """B."""
        return len(self.positions)

    @property
    def num_candidates(self) -> int:
        """C, over all requests."""
        return len(self.row_ids)

    @property
    def num_events(self) -> int:
        """T, over all requests and logs."""
        return sum(len(history.times) for history in self.histories.values())
