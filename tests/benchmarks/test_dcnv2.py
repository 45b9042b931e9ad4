"""The order of a pass: each row is scored before its labels are learned, each label once and when it is known."""

import numpy as np
import pytest
import torch

from benchmarks.dcnv2 import Dcnv2, Dcnv2Config, run_pass, steps_of
from benchmarks.network import known_cross_entropy
from benchmarks.opened import opened

DAY_US = 86_400_000_000
CONFIG = Dcnv2Config(width=4, hidden=(8, 4), batch_requests=16, threads=1)


@pytest.fixture(scope="module")
def project(tiny_teacher):
    return opened(tiny_teacher.path)


def test_every_row_is_scored_once_and_every_label_learned_once_when_it_is_known(project):
    rows = project.rows
    scored, learned = [], {k: [] for k in range(rows.labels.shape[1])}
    late = rows.place("conversion")
    steps = list(steps_of(rows, 16, end=rows.num_rows, cut=project.cut))
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        scored += range(step.first, step.last)
        settled = [row for row in range(step.first) if rows.times[row] + DAY_US < rows.times[step.first]]
        waiting = [row for row in settled if row not in learned[late] and np.isfinite(rows.labels[row, late])]
        for first, last, places in step.ripe:
            for k in places:
                learned[k] += range(first, last)
                if k == late:
                    assert set(waiting) <= set(range(first, last)) <= set(settled)
                else:
                    assert (first, last) == (step.first, step.last)
        is_full = len(waiting) >= step.last - step.first
        is_before_cut = after is not None and after.first <= project.cut < after.last
        learns_late = any(late in places for _, _, places in step.ripe)
        assert learns_late == (len(waiting) > 0 and (is_full or is_before_cut))
    assert scored == list(range(rows.num_rows))
    assert learned[0] == learned[1] == scored
    assert learned[late] == list(range(len(learned[late])))
    assert 0 < len(learned[late]) < rows.num_rows


def test_no_settled_label_is_left_when_the_network_is_frozen(project):
    rows, late = project.rows, project.rows.place("conversion")
    steps = list(steps_of(rows, 16, end=rows.num_rows, cut=project.cut))
    (at_cut,) = [place for place, step in enumerate(steps) if step.first <= project.cut < step.last]
    before = steps[at_cut - 1]
    learned = max(last for step in steps[:at_cut] for _, last, places in step.ripe if late in places)
    settled = [row for row in range(before.first) if rows.times[row] + DAY_US < rows.times[before.first]]
    assert not np.isfinite(rows.labels[learned : len(settled), late]).any()


def test_batches_end_between_requests(project):
    edges = set(project.rows.offsets.tolist())
    assert all({step.first, step.last} <= edges for step in steps_of(project.rows, 16, end=project.rows.num_rows))


def test_a_score_does_not_change_with_labels_of_its_row_or_later_ones(project):
    from dataclasses import replace

    rows, changed = project.rows, project.cut // 2
    other = rows.labels.copy()
    other[changed:] = 1 - other[changed:]
    first = run_pass(rows, CONFIG, cut=project.cut)
    second = run_pass(replace(rows, labels=other), CONFIG, cut=project.cut)
    start = rows.offsets[np.searchsorted(rows.offsets, changed, side="right") - 1]
    batch = rows.offsets[::16]
    upto = batch[np.searchsorted(batch, start, side="right") - 1]
    assert np.array_equal(first.progressive[:upto], second.progressive[:upto])
    assert not np.array_equal(first.progressive[-100:], second.progressive[-100:])


def test_the_frozen_scores_know_nothing_of_the_test_period_and_begin_as_the_progressive_ones(project):
    from dataclasses import replace

    rows = project.rows
    other = rows.labels.copy()
    other[project.cut :] = 1 - other[project.cut :]
    first = run_pass(rows, CONFIG, cut=project.cut)
    second = run_pass(replace(rows, labels=other), CONFIG, cut=project.cut)
    assert first.frozen.shape == (rows.num_rows - project.cut, rows.labels.shape[1])
    assert np.array_equal(first.frozen, second.frozen)
    assert np.allclose(first.frozen[0], first.progressive[project.cut], atol=1e-6)
    assert not np.allclose(first.frozen[-50:], first.progressive[-50:], atol=1e-6)


def test_the_network_is_the_formula_of_the_paper(project):
    torch.manual_seed(1)
    rows = project.rows
    network = Dcnv2(rows, CONFIG).double()
    ids, numbers = torch.from_numpy(rows.ids[:5]).long(), torch.from_numpy(rows.numbers[:5]).double()
    got = network(ids, numbers)
    for row in range(5):
        pieces = [
            network.tables.rows.weight[network.tables.first[t] + ids[row, k]] for k, t in enumerate(rows.id_tables)
        ]
        x0 = torch.cat([*pieces, numbers[row]])
        x = x0
        for layer in network.cross:
            x = x0 * (layer.weight @ x + layer.bias) + x
        hidden = x0
        for layer in (network.deep[0], network.deep[2]):
            hidden = torch.clamp(layer.weight @ hidden + layer.bias, min=0)
        assert torch.allclose(got[row], network.out.weight @ torch.cat([x, hidden]) + network.out.bias)


def test_the_loss_is_the_mean_over_known_labels_summed_over_objectives():
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.5], [-0.7, 0.1]])
    labels = torch.tensor([[1.0, np.nan], [0.0, np.nan], [1.0, 1.0]])
    chance = 1 / (1 + np.exp(-logits.numpy()))
    first = -(np.log(chance[0, 0]) + np.log(1 - chance[1, 0]) + np.log(chance[2, 0])) / 3
    assert known_cross_entropy(logits, labels).item() == pytest.approx(first - np.log(chance[2, 1]), rel=1e-5)
