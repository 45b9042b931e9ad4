"""Runs a bundle over logged requests, so that quality is measured on the very files whose latency is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.predictions import Predictions
from foundation.data.batch import RequestBatch
from foundation.data.reader import Reader
from foundation.data.store import Store
from serving.ages import age_days
from serving.bundle import load_bundle
from serving.ranker import Ranker
from serving.session import open_session
from transfer.distill import SCORING_REQUESTS, StudentJob
from transfer.predict import predictions_of
from transfer.sampling import with_odds


def served_predictions(bundle_folder: Path, job: StudentJob) -> Predictions:
    """What a bundle says of its placement's test rows, as they are; `model_digest` is the bundle's.

    Args:
        bundle_folder: a bundle of the job's placement.
        job: names the store, the placement and the cut.
    """
    bundle = load_bundle(bundle_folder)
    ranker = Ranker(bundle.manifest, open_session(bundle.model))
    store = Store.open(job.store, job.schema)
    positions = store.select(surfaces=(job.placement.surface,), start=job.until_us)
    limits = {history.log: history.limit for history in bundle.manifest.histories}
    objectives = bundle.manifest.objectives
    batches, scores = [], []
    with Reader(store, job.schema, positions, SCORING_REQUESTS, history_limits=limits) as reader:
        for batch in reader:
            batches.append(batch)
            for request in range(batch.num_requests):
                served = ranker.score_arrays(feeds_of(batch, request))
                scores.append(np.stack([_of_kept_rows(served[name], name, job) for name in objectives], axis=1))
    return predictions_of(
        batches,
        np.concatenate(scores).astype(np.float64),
        schema=job.schema,
        objectives=objectives,
        model_digest=bundle.digest,
        data_fingerprint=store.fingerprint,
    )


def _of_kept_rows(probabilities: NDArray[Any], objective: str, job: StudentJob) -> NDArray[Any]:
    """What a bundle says of all rows, said of those that the log kept, on which it is judged."""
    kept = job.schema.objectives[objective].negatives_kept
    return with_odds(probabilities.astype(np.float64), 1 / kept) if kept < 1 else probabilities


def feeds_of(batch: RequestBatch, request: int) -> dict[str, Any]:
    """Graph inputs of one request of a batch; those of no width are left out."""
    candidates = slice(*batch.candidate_offsets[request : request + 2])
    feeds = {
        "request_ids": batch.ids[request : request + 1],
        "request_numbers": batch.numbers[request : request + 1],
        "candidate_ids": batch.candidate_ids[candidates],
        "candidate_numbers": batch.candidate_numbers[candidates],
    }
    for log, history in batch.histories.items():
        events = slice(*history.offsets[request : request + 2])
        ages = age_days(int(batch.times[request]), history.times[events])
        feeds |= {
            f"history_ids.{log}": history.ids[events],
            f"history_numbers.{log}": history.numbers[events],
            f"history_ages.{log}": ages,
        }
    return {name: array for name, array in feeds.items() if array.ndim == 1 or array.shape[1]}
