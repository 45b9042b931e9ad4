"""The synthetic logs: drawn with the probabilities they state, and with the difficulties they promise."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemcut.demo_data.draws import draw_in_ranges, weight_edges
from gemcut.demo_data.synthetic import Events, count_matches, make_data
from gemcut.project import load_project

PROJECT = Path(__file__).parents[2] / "examples" / "synthetic" / "project.yaml"
TABLES = ("impressions", "events", "items", "users", "truth")
OBJECTIVES = ("click", "long_view", "conversion")
LATE = datetime(2024, 2, 18, tzinfo=UTC).replace(tzinfo=None)  # the tables name no zone, which means UTC


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    folder = tmp_path_factory.mktemp("synthetic")
    make_data(folder, num_requests=4000)
    return {name: pq.read_table(folder / f"{name}.parquet") for name in TABLES}


def query(logs: dict[str, pa.Table], sql: str) -> list[tuple]:
    with duckdb.connect() as connection:
        for name, table in logs.items():
            connection.register(name, table)
        return connection.sql(sql).fetchall()


def joined(logs: dict[str, pa.Table], objective: str) -> tuple[np.ndarray, np.ndarray]:
    rows = query(
        logs,
        f"""select i.{objective}, t.{objective} from impressions as i join truth as t using (request_id, item_id)
            where i.{objective} is not null""",
    )
    labels, probabilities = np.array(rows, dtype=np.float64).T
    return labels, probabilities


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_labels_occur_as_often_as_their_probabilities_say(logs, objective):
    labels, probabilities = joined(logs, objective)
    for bound in np.split(np.argsort(probabilities), [len(labels) // 2, len(labels) * 9 // 10]):
        expected = probabilities[bound].sum()
        deviation = np.sqrt((probabilities[bound] * (1 - probabilities[bound])).sum())
        assert abs(labels[bound].sum() - expected) < 4 * deviation


@pytest.mark.parametrize(("objective", "low", "high"), [("click", 0.75, 0.9), ("long_view", 0.75, 0.9)])
def test_the_true_probabilities_rank_well_but_not_perfectly(logs, objective, low, high):
    labels, probabilities = joined(logs, objective)
    ranks = np.argsort(np.argsort(probabilities)) + 1
    positives = labels.sum()
    auc = (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))
    assert low < auc < high


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for folder, seed in (("first", 3), ("second", 3), ("other", 4)):
        make_data(tmp_path / folder, num_requests=50, seed=seed)
    for name in TABLES:
        first, second, other = (
            (tmp_path / folder / f"{name}.parquet").read_bytes() for folder in ("first", "second", "other")
        )
        assert first == second
        assert first != other


def test_conversions_are_rare_follow_clicks_and_exist_on_two_surfaces(logs):
    surfaces = query(logs, "select distinct surface from impressions where conversion is not null order by all")
    assert surfaces == [("related",), ("search",)]
    assert query(logs, "select distinct surface from truth join impressions using (request_id, item_id) "
                       "where truth.conversion is not null order by all") == surfaces  # fmt: skip
    ((rate, without_click),) = query(
        logs,
        "select avg(conversion), count(*) filter ((conversion = 1 or long_view = 1) and click = 0) from impressions",
    )
    assert 0.003 < rate < 0.03
    assert without_click == 0


def test_conversions_of_the_last_day_are_unknown(logs):
    ((known, rows),) = query(
        logs,
        """select count(conversion), count(*) from impressions
           where surface = 'search' and time > timestamp '2024-02-29 00:00:00'""",
    )
    assert known == 0
    assert rows > 0


def test_histories_reach_from_none_to_thousands(logs):
    ((shortest, median, longest),) = query(
        logs,
        """select min(n), median(n), max(n) from (
               select count(events.user_id) as n from users left join events using (user_id) group by users.user_id)""",
    )
    assert shortest == 0
    assert 20 < median < 80
    assert longest > 2000


@pytest.mark.parametrize("key", ["user_id", "item_id"])
def test_some_users_and_items_appear_only_in_the_test_period(logs, key):
    firsts = query(
        logs,
        f"""select min(time) from (select {key}, time from impressions union all select {key}, time from events)
            group by {key}""",
    )
    late = np.mean([first >= LATE for (first,) in firsts])
    assert 0.05 < late < 0.3


def test_a_request_has_one_user_time_and_surface_and_an_item_once(logs):
    ((users, times, surfaces, items),) = query(
        logs,
        """select max(u), max(t), max(s), min(distinct_items) from (
               select count(distinct user_id) as u, count(distinct time) as t, count(distinct surface) as s,
                      count(distinct item_id) = count(*) as distinct_items from impressions group by request_id)""",
    )
    assert (users, times, surfaces, items) == (1, 1, 1, True)


def test_numbers_have_nulls_and_labels_hold_only_0_1_and_null(logs):
    assert 0 < logs["items"]["price"].null_count < len(logs["items"])
    assert 0 < logs["events"]["dwell_s"].null_count < len(logs["events"])
    for objective in OBJECTIVES:
        assert set(logs["impressions"][objective].to_pylist()) <= {0, 1, None}


def test_every_column_of_the_project_file_is_there(logs):
    project = load_project(PROJECT).project
    data = project.data
    assert {"request_id", "user_id", "time", "surface", "item_id", *project.objectives} <= set(
        logs["impressions"].column_names
    )
    for table, features in (
        ("impressions", data.impressions.context),
        ("events", data.events["actions"].features),
        ("items", data.items.features),
        ("users", data.users.features),
    ):
        assert {feature.source for feature in features} <= set(logs[table].column_names)
    assert set(logs["impressions"]["surface"].unique().to_pylist()) == set(project.surfaces)


def test_matches_count_only_the_newest_20_events_strictly_before_the_time():
    categories = np.array([0, 1])
    events = Events(
        users=np.array([0] * 25 + [1, 1]),
        times_ms=np.array([*range(25), 7, 9]),
        items=np.array([0] * 10 + [1] * 15 + [0, 1]),
    )
    users, times, items = np.array([0, 0, 0, 1, 1]), np.array([25, 24, 10, 9, 7]), np.array([1, 0, 0, 0, 0])
    # User 0 at 25: items 5..24, of which 15 are item 1; at 24: 4..23, six of item 0; at 10: ten of item 0.
    assert count_matches(events, categories, users=users, times_ms=times, items=items).tolist() == [15, 6, 10, 1, 0]


def test_draws_follow_the_weights_of_their_range():
    uniform = np.random.default_rng(1).random(20_000)
    drawn = draw_in_ranges(
        weight_edges(np.array([5.0, 1.0, 3.0, 9.0])), uniform, first=np.array([1]), end=np.array([3])
    )
    assert set(drawn.tolist()) == {1, 2}
    assert abs(np.mean(drawn == 2) - 0.75) < 0.02
