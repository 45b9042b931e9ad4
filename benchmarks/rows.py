"""Rows of a request store, flat in memory: what every baseline learns from, and the table its scores go into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.predictions import Predictions
from foundation.data.batch import Float32Array, Int64Array, RequestBatch
from foundation.data.reader import Reader
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.data.store import Store
from foundation.training.labels import counted_labels, label_delays

REQUESTS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """R requests with N rows in time order, as the models see them; of histories there is nothing.

    Attributes:
        schema: whose features and objectives these are.
        data_fingerprint: of the store.
        positions: [R] int64, place of each request in the store.
        offsets: [R + 1] int64, rows of request r are offsets[r]:offsets[r + 1].
        times: [N] int64, microseconds since 1970 UTC.
        users: [N] int64, row of the user in the store.
        surfaces: [N] int64, place of the surface in `schema.surfaces`.
        row_ids: [N] int64.
        ids: [N, F] int32, of the request's id features, then the candidate's.
        numbers: [N, G] float32, encoded, likewise.
        labels: [N, K] float32, 0 or 1, NaN where unknown, where there is no head, and where a masked
            objective's condition is not met.
    """

    schema: Schema
    data_fingerprint: str
    positions: Int64Array
    offsets: Int64Array
    times: Int64Array
    users: Int64Array
    surfaces: Int64Array
    row_ids: Int64Array
    ids: NDArray[np.int32]
    numbers: Float32Array
    labels: Float32Array

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.row_ids)

    @property
    def id_names(self) -> tuple[str, ...]:
        """[F] names of the columns of `ids`."""
        features = (*ids_of(self.schema.request_features()), *ids_of(self.schema.candidate_features()))
        return tuple(feature.name for feature in features)

    @property
    def id_tables(self) -> tuple[str, ...]:
        """[F] tables of the columns of `ids`."""
        features = (*ids_of(self.schema.request_features()), *ids_of(self.schema.candidate_features()))
        return tuple(feature.table_name for feature in features)

    @property
    def number_names(self) -> tuple[str, ...]:
        """[G] names of the columns of `numbers`."""
        features = (*numbers_of(self.schema.request_features()), *numbers_of(self.schema.candidate_features()))
        return tuple(feature.name for feature in features)

    def first_at(self, time_us: int) -> int:
        """The first row at or after a time, microseconds since 1970 UTC."""
        return int(np.searchsorted(self.times, time_us, side="left"))

    def settled(self, objective: str, until_us: int) -> NDArray[np.bool_]:
        """[N] bool: rows before a time whose label of an objective is known by then."""
        place = self.place(objective)
        delay, known = label_delays(self.schema)[place], np.isfinite(self.labels[:, place])
        return known & (self.times + delay <= until_us) & (self.times < until_us)

    def place(self, objective: str) -> int:
        """Column of an objective in `labels`."""
        return tuple(self.schema.objectives).index(objective)


def read_rows(store: Store, schema: Schema, positions: Int64Array) -> Rows:
    """Rows of the requests at some positions of a store, as a reader yields them."""
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, positions, REQUESTS_AT_ONCE, history_limits=none) as reader:
        pieces = [_flat(batch, schema) for batch in reader]
    sizes, *columns = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Rows(schema, store.fingerprint, positions, offsets, *columns)


def _flat(batch: RequestBatch, schema: Schema) -> tuple[NDArray[np.generic], ...]:
    sizes = np.diff(batch.candidate_offsets)
    owner = np.repeat(np.arange(batch.num_requests), sizes)
    surfaces = batch.surfaces[owner]
    return (
        sizes,
        batch.times[owner],
        batch.users[owner],
        surfaces,
        batch.row_ids,
        np.concatenate([batch.ids[owner], batch.candidate_ids], axis=1).astype(np.int32),
        np.concatenate([batch.numbers[owner], batch.candidate_numbers], axis=1),
        np.where(schema.head_exists()[surfaces], counted_labels(batch, schema), np.float32(np.nan)),
    )


def predictions_from(
    rows: Rows, first: int, probabilities: Mapping[str, NDArray[np.floating]], *, model_digest: str
) -> Predictions:
    """The table of the rows from place `first` on, given each objective's probabilities for them."""
    labels = rows.labels[first:].astype(np.float64)
    requests = np.repeat(rows.positions, np.diff(rows.offsets))[first:]
    return Predictions(
        row_id=rows.row_ids[first:],
        request=requests,
        user=rows.users[first:],
        time=rows.times[first:],
        surface=rows.surfaces[first:].astype(np.int32),
        probabilities={name: np.asarray(values, dtype=np.float64) for name, values in probabilities.items()},
        labels={name: labels[:, rows.place(name)] for name in probabilities},
        surfaces=rows.schema.surfaces,
        model_digest=model_digest,
        data_fingerprint=rows.data_fingerprint,
    )
