"""All metrics of one model on one objective, with intervals over users, in total and by surface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eval.intervals import STANDARD, Bootstrap, Interval, clustered_rows
from eval.metrics.ranking import grouped_auc
from eval.predictions import Predictions
from serving.errors import DataError, Problem


@dataclass(frozen=True, slots=True)
class Metrics:
    """How well a model predicts one objective on some rows; undefined numbers are NaN.

    Attributes:
        num_rows: rows with a probability and a known label; only these count.
        num_unscored: rows left out, for want of either.
        num_positives: rows with label 1.
        num_users: users they come from; the clusters of the intervals.
        num_groups_used: requests with both classes, which the grouped AUC is made of.
        num_groups_dropped: requests with one class.
        normalized_entropy: log loss over that of the mean label.
        auc: area under the ROC curve over all rows.
        grouped_auc: AUC within requests, weighted by their candidates.
        calibration: predicted over actual positives.
        log_loss: mean, in nats.
    """

    num_rows: int
    num_unscored: int
    num_positives: int
    num_users: int
    num_groups_used: int
    num_groups_dropped: int
    normalized_entropy: Interval
    auc: Interval
    grouped_auc: Interval
    calibration: Interval
    log_loss: Interval


def evaluate(predictions: Predictions, objective: str, *, bootstrap: Bootstrap = STANDARD) -> Metrics:
    """Metrics of the rows whose label of the objective is known.

    Raises:
        DataError: the model does not predict the objective.
    """
    if objective not in predictions.probabilities:
        known = ", ".join(predictions.objectives) or "none"
        problem = Problem("objective", f"one of: {known}", repr(objective), "Name an objective that the model has.")
        raise DataError(problem)
    table = predictions.scored(objective)
    labels, probabilities = table.labels[objective], table.probabilities[objective]
    rows = clustered_rows(labels, probabilities, table.user)
    groups = grouped_auc(labels, probabilities, table.request)
    return Metrics(
        num_rows=table.num_rows,
        num_unscored=predictions.num_rows - table.num_rows,
        num_positives=int(labels.sum()),
        num_users=rows.num_clusters,
        num_groups_used=groups.num_used,
        num_groups_dropped=groups.num_dropped,
        normalized_entropy=bootstrap.interval(rows.normalized_entropy(), rows.num_clusters),
        auc=bootstrap.interval(rows.auc(), rows.num_clusters),
        grouped_auc=bootstrap.interval(rows.grouped_auc(table.request), rows.num_clusters),
        calibration=bootstrap.interval(rows.calibration(), rows.num_clusters),
        log_loss=bootstrap.interval(rows.log_loss(), rows.num_clusters),
    )


def evaluate_surfaces(
    predictions: Predictions,
    objective: str,
    *,
    surfaces: Iterable[str] | None = None,
    bootstrap: Bootstrap = STANDARD,
) -> dict[str, Metrics]:
    """Metrics by surface, by default of every surface that has rows. NE is not comparable across: base rates differ."""
    names = predictions.surfaces if surfaces is None else tuple(surfaces)
    tables = {name: predictions.on_surface(name) for name in names}
    return {
        name: evaluate(table, objective, bootstrap=bootstrap)
        for name, table in tables.items()
        if table.num_rows or surfaces is not None
    }
