"""The student in its two forms: in training on TorchRec tables, and as it is served."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from eval.predictions import load_predictions
from foundation.data.batch import History
from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.model.inputs import to_tensors
from foundation.model.layout import bucket_by_length
from foundation.model.match import match_signals
from foundation.parallel.world import joined_world
from foundation.training.checkpoint import list_checkpoints, load_checkpoint
from serving.ids import OUT_OF_VOCABULARY
from transfer.distill import PREDICTIONS_FILE, build_student
from transfer.export import served_student
from transfer.serve_log import feeds_of

SUMS_DIFFER = 1e-6  # float32 sums in another order


@pytest.fixture(scope="module")
def job(tiny):
    return tiny.space().student_job("search_conversion", 0, "student")


@pytest.fixture(scope="module")
def store(job):
    return Store.open(job.store, job.schema)


@pytest.fixture(scope="module")
def served(job, store):
    return served_student(job, store)


@pytest.fixture(scope="module")
def trained(job, store):
    """The trained student on its TorchRec tables: a function of a batch."""
    with joined_world(1) as world:
        trainer = build_student(job, world, store)
        load_checkpoint(list_checkpoints(job.folder / "checkpoints")[-1], tensors=trainer.tensors())
        yield lambda batch: torch.sigmoid(trainer.score(to_tensors(batch, world.device))[0]).numpy()


def batches(job, store, batch_requests):
    positions = store.select(surfaces=(job.placement.surface,), start=job.until_us)
    limits = dict.fromkeys(job.schema.data.events, job.placement.student.history)
    with Reader(store, job.schema, positions, batch_requests, history_limits=limits) as reader:
        return list(reader)


@pytest.fixture(scope="module")
def one(job, store):
    """A logged request that has events in every log."""
    return next(
        batch
        for batch in batches(job, store, 1)
        if all(history.offsets[-1] >= 3 for history in batch.histories.values())
    )


def said_by(served, batch):
    """What the served form says of every request of a batch."""
    with torch.no_grad():
        requests = [
            served({name: torch.as_tensor(array) for name, array in feeds_of(batch, request).items()})
            for request in range(batch.num_requests)
        ]
    return torch.cat(requests).numpy()


def with_candidates(batch, count):
    """One request with as many candidates, the logged ones again and again."""
    places = np.arange(count) % batch.num_candidates
    return replace(
        batch,
        candidate_offsets=np.array([0, count]),
        candidate_ids=batch.candidate_ids[places],
        candidate_numbers=batch.candidate_numbers[places],
        row_ids=np.arange(count),
        labels=batch.labels[places],
    )


def without_events(batch):
    empty = {
        log: History(np.zeros(2, dtype=np.int64), history.ids[:0], history.numbers[:0], history.times[:0])
        for log, history in batch.histories.items()
    }
    return replace(batch, histories=empty)


def test_the_first_layer_in_two_halves_is_one_layer_on_everything():
    torch.manual_seed(0)
    user_half, candidate_half = nn.Linear(5, 4), nn.Linear(3, 4, bias=False)
    whole = nn.Linear(8, 4)
    with torch.no_grad():
        whole.weight.copy_(torch.cat([user_half.weight, candidate_half.weight], dim=1))
        whole.bias.copy_(user_half.bias)
    user, candidates = torch.randn(1, 5), torch.randn(7, 3)
    dense = whole(torch.cat([user.expand(7, 5), candidates], dim=1))
    assert torch.allclose(user_half(user) + candidate_half(candidates), dense, atol=1e-6)


def test_the_network_is_that_layer_and_those_above_it(served):
    network = served.network
    user = torch.randn(1, network.user_half.in_features)
    candidates = torch.randn(6, network.candidate_half.in_features)
    first = torch.cat([network.user_half.weight, network.candidate_half.weight], dim=1)
    x = torch.cat([user.expand(6, -1), candidates], dim=1) @ first.T + network.user_half.bias
    for layer in network.hidden:
        x = x.clamp(min=0) if isinstance(layer, nn.ReLU) else x @ layer.weight.T + layer.bias
    with torch.no_grad():
        assert torch.allclose(network.backbone(network.user_half(user), candidates), x, atol=1e-5)


def test_the_served_form_says_of_every_test_row_what_the_trained_form_said(job, store, served):
    found = batches(job, store, 8)
    predictions = load_predictions(job.folder / PREDICTIONS_FILE)
    assert np.array_equal(np.concatenate([batch.row_ids for batch in found]), predictions.row_id)
    expected = np.stack([predictions.probabilities[name] for name in job.placement.objectives], axis=1)
    assert np.abs(np.concatenate([said_by(served, batch) for batch in found]) - expected).max() < SUMS_DIFFER
    lengths = np.concatenate([np.diff(history.offsets) for batch in found for history in batch.histories.values()])
    assert lengths.min() == 0, "the log has a user of whom nothing is known"
    assert lengths.max() == job.placement.student.history


@pytest.mark.parametrize("count", [1, 2, 513])
@pytest.mark.parametrize("change", [lambda batch: batch, without_events], ids=["as logged", "no event"])
def test_both_forms_agree_on_any_number_of_candidates(one, served, trained, count, change):
    batch = change(with_candidates(one, count))
    said = said_by(served, batch)
    assert said.shape == (count, 2)
    assert np.isfinite(said).all()
    assert np.abs(said - trained(batch)).max() < SUMS_DIFFER


def test_both_forms_agree_on_requests_with_histories_of_any_lengths(job, store, served, trained):
    several = batches(job, store, 16)[0]
    assert np.abs(said_by(served, several) - trained(several)).max() < SUMS_DIFFER


def test_the_order_of_candidates_is_theirs_alone(one, served):
    feeds = {name: torch.as_tensor(array) for name, array in feeds_of(one, 0).items()}
    order = torch.randperm(len(feeds["candidate_ids"]), generator=torch.Generator().manual_seed(1))
    shuffled = {name: value[order] if name.startswith("candidate_") else value for name, value in feeds.items()}
    with torch.no_grad():
        assert torch.allclose(served(shuffled), served(feeds)[order], atol=SUMS_DIFFER)


@pytest.mark.parametrize("num_events", [0, 1, 6])
def test_the_served_match_signals_are_those_of_training(served, num_events):
    draw = torch.Generator().manual_seed(num_events)
    fields = served.num_item_fields
    candidates = torch.randint(0, 4, (9, fields), generator=draw)
    events = torch.randint(0, 4, (num_events, fields), generator=draw)
    ages_days = 100 * torch.rand(num_events, generator=draw)
    buckets = bucket_by_length(torch.tensor([0, num_events]), torch.tensor([0, 9]))
    expected = match_signals(candidates, events, ages_days, buckets)
    said = served._matches(candidates, events, ages_days)
    assert torch.allclose(said, expected, atol=SUMS_DIFFER)


@pytest.mark.parametrize("group", ["request_ids", "candidate_ids", "history_ids.actions"])
def test_an_id_outside_its_table_is_out_of_vocabulary_and_reads_no_neighbours_row(one, served, group):
    feeds = {name: torch.as_tensor(array).clone() for name, array in feeds_of(one, 0).items()}
    feeds["history_ids.actions"][1] = feeds["candidate_ids"][1, 0] = OUT_OF_VOCABULARY  # something to match, or not
    rows = {"request_ids": served.request_rows, "candidate_ids": served.candidate_rows}
    sizes = rows.get(group, served.event_rows["actions"]).sizes.tolist()
    for column, size in enumerate(sizes):

        def said(value, column=column):
            ids = feeds[group].clone()
            ids[0, column] = value
            with torch.no_grad():
                return served(feeds | {group: ids})

        expected = said(OUT_OF_VOCABULARY)
        for bad in (-1, -(2**63), size, 2**31, 2**62, 2**63 - 1):
            assert torch.equal(said(bad), expected), f"column {column}, id {bad}"
        assert not torch.equal(said(size - 1), expected), f"column {column}: the last row is a row"


def test_every_input_moves_what_the_student_says(one, served):
    """Each column of each input alone; ids of events without a match, which would show by itself, and ages with one."""
    feeds = {name: torch.as_tensor(array).clone() for name, array in feeds_of(one, 0).items()}
    rows = {"request_ids": served.request_rows, "candidate_ids": served.candidate_rows}
    for log in served.logs:
        rows[f"history_ids.{log}"] = served.event_rows[log]
        feeds[f"history_ids.{log}"][:, : served.num_item_fields] = OUT_OF_VOCABULARY

    def said(changed):
        with torch.no_grad():
            return served(feeds | changed)

    unmoved, num_columns = [], 0
    for name, value in feeds.items():
        matched = {}
        if name.startswith("history_ages."):
            ids = name.replace("ages", "ids")
            matched[ids] = feeds[ids].clone()
            matched[ids][:, : served.num_item_fields] = feeds["candidate_ids"][0, : served.num_item_fields]
        for column in range(value.shape[1] if value.ndim == 2 else 1):
            other = value.clone()
            cells = other[:, column] if value.ndim == 2 else other
            if name in rows:
                taken = {*cells.tolist(), *feeds["candidate_ids"].flatten().tolist()}
                cells.fill_(max(set(range(int(rows[name].sizes[column]))) - taken))
            else:
                cells.mul_(8).add_(1)
            num_columns += 1
            if torch.equal(said(matched | {name: other}), said(matched)):
                unmoved.append(f"{name}, column {column}")
    assert num_columns > len(feeds) > 5
    assert unmoved == []
