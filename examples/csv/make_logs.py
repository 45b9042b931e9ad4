"""Make the small CSV logs of this example, as a shop might export them: `python examples/csv/make_logs.py [FOLDER]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import duckdb

from gemcut.demo_data.synthetic import make_data

NUM_REQUESTS = 60
NEWEST_ACTIONS = 8

_LOGS = {
    "pageviews": """
        select 'p' || request_id as view, 'v' || user_id as visitor, strftime(time, '%Y-%m-%dT%H:%M:%SZ') as shown_at,
            surface as page, 's' || item_id as sku, device, if(click = 1, 'yes', 'no') as clicked,
            case when device = 'tablet' then null when long_view = 1 then 'yes' else 'no' end as saved
        from impressions order by request_id, item_id
        """,
    "actions": f"""
        select 'v' || user_id as visitor, epoch(time)::bigint as unix_time, 's' || item_id as sku, action
        from events semi join impressions using (user_id)
        qualify row_number() over (partition by user_id order by time desc) <= {NEWEST_ACTIONS}
        order by unix_time, visitor, sku
        """,
    "catalogue": """
        select 's' || item_id as sku, category, brand, coalesce(format('{:.2f}', price), 'n/a') as price
        from items order by item_id
        """,
}


def main() -> None:
    """Draw a small synthetic log and write it as a shop's CSV files."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "logs"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as drawn, duckdb.connect() as connection:
        make_data(Path(drawn), num_requests=NUM_REQUESTS, seed=1)
        for table in ("impressions", "events", "items"):
            connection.execute(f"create view {table} as from read_parquet('{drawn}/{table}.parquet')")
        for name, sql in _LOGS.items():
            connection.sql(sql).write_csv(str(target / f"{name}.csv"))


if __name__ == "__main__":
    main()
