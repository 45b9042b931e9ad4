"""Padded histories are each row's newest events; the padded model scores as its formula says, row by row."""

import numpy as np
import pytest
import torch

from benchmarks.opened import opened
from benchmarks.plain_din import EVENTS, PlainDin, compare_din, padded
from foundation.data.reader import Reader


@pytest.fixture(scope="module")
def project(tiny_teacher):
    return opened(tiny_teacher.path)


@pytest.fixture(scope="module")
def batch(project):
    with Reader(project.store, project.loaded.project, project.store.select()[-60:], 60) as reader:
        return next(iter(reader))


def test_each_row_has_a_copy_of_its_request_s_newest_events(batch):
    for history in batch.histories.values():
        got = padded(batch, history)
        owner = np.repeat(np.arange(batch.num_requests), np.diff(batch.candidate_offsets))
        assert len(got.there) == batch.num_candidates
        for row, request in enumerate(owner):
            events = np.arange(*history.offsets[request : request + 2])[-EVENTS:]
            there = got.there[row].numpy()
            assert there.tolist() == [False] * (EVENTS - len(events)) + [True] * len(events)
            assert np.array_equal(got.ids[row].numpy()[there], history.ids[events])
            ages = np.log1p((batch.times[request] - history.times[events]) / 86_400e6)
            expected = np.concatenate([history.numbers[events], ages[:, None]], axis=1)
            assert np.allclose(got.numbers[row].numpy()[there], expected, atol=1e-5)


def test_no_event_at_all_is_no_weight(batch):
    from dataclasses import replace

    history = batch.histories["actions"]
    none = replace(
        history,
        offsets=np.zeros_like(history.offsets),
        ids=history.ids[:0],
        numbers=history.numbers[:0],
        times=history.times[:0],
    )
    got = padded(batch, none)
    assert not got.there.any()
    assert got.ids.shape == (batch.num_candidates, EVENTS, history.ids.shape[1])
    assert got.numbers.shape[2] == history.numbers.shape[1] + 1


def test_padding_does_not_reach_the_scores(project, batch):
    from dataclasses import replace

    torch.manual_seed(0)
    schema = project.loaded.project
    network = PlainDin(schema)
    owner = np.repeat(np.arange(batch.num_requests), np.diff(batch.candidate_offsets))
    ids = torch.from_numpy(np.concatenate([batch.ids[owner], batch.candidate_ids], axis=1))
    numbers = torch.from_numpy(np.concatenate([batch.numbers[owner], batch.candidate_numbers], axis=1))
    histories = {log: padded(batch, history) for log, history in batch.histories.items()}
    plain = network(ids, numbers, histories)
    spoilt = {
        log: replace(
            one,
            ids=torch.where(one.there.unsqueeze(2), one.ids, 1),
            numbers=torch.where(one.there.unsqueeze(2), one.numbers, 7.0),
        )
        for log, one in histories.items()
    }
    assert torch.equal(plain, network(ids, numbers, spoilt))
    one = spoilt["actions"]
    moved = {**spoilt, "actions": replace(one, numbers=one.numbers + one.there.unsqueeze(2))}
    assert not torch.equal(plain, network(ids, numbers, moved))


def test_both_models_are_judged_on_the_same_rows_of_one_run(tiny_teacher):
    found = compare_din(tiny_teacher.path, requests=100, threads=1)
    assert set(found) == {"rows", "plain, padded", "gemcut din"}
    for name in ("plain, padded", "gemcut din"):
        assert found[name]["rows_per_s"] > 0
        assert set(found[name]["auc"]) == {"click", "long_view", "conversion"}
        assert 0 < found[name]["auc"]["click"] < 1
