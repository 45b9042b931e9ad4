"""CSV logs to the parquet tables of project.yaml: `python examples/csv/convert.py [FOLDER]`."""

import sys
from pathlib import Path

import duckdb

LOGS = Path(__file__).parent / "logs"
TABLES = {
    # Times become timestamps in UTC, labels 1, 0 or null (not known), numbers numbers; text ids stay text.
    "impressions": f"""
        select view as request_id, visitor as user_id, strptime(shown_at, '%Y-%m-%dT%H:%M:%SZ') as time,
            page as surface, sku as item_id, device,
            (case clicked when 'yes' then 1 when 'no' then 0 end)::tinyint as clicked,
            (case saved when 'yes' then 1 when 'no' then 0 end)::tinyint as saved
        from read_csv('{LOGS}/pageviews.csv', all_varchar = true) order by time, request_id
        """,
    "events": f"""
        select visitor as user_id, unix_time::bigint as time, sku as item_id, action
        from read_csv('{LOGS}/actions.csv', all_varchar = true) order by time, user_id, item_id
        """,
    "items": f"""
        select sku as item_id, category, brand, nullif(price, 'n/a')::double as price
        from read_csv('{LOGS}/catalogue.csv', all_varchar = true) order by item_id
        """,
}

if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
    target.mkdir(parents=True, exist_ok=True)
    for name, sql in TABLES.items():
        duckdb.sql(sql).write_parquet(str(target / f"{name}.parquet"))
