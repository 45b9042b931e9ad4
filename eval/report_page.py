"""The report as files: JSON, and one page with the table and plots of NE, calibration and latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from eval.artifacts import write_file, write_json
from eval.report import COLUMNS, HELP, MODELS, PlacementResult, as_json, distinct_notes, table_lines

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FORMAT = 1
COLOURS = {"teacher": "#64748b", "twin": "#d97706", "student": "#2563eb"}
SYMBOLS = {"teacher": "diamond", "twin": "circle-open", "student": "circle"}
PERCENTILES = {"p50": "#bfdbfe", "p90": "#93c5fd", "p95": "#60a5fa", "p99": "#2563eb"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #0f172a; background: #f8fafc; margin: 0 }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 4rem }
h1 { font-size: 1.6rem; margin: 0 0 1.2rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem }
.card { background: #fff; border: 1px solid #e2e8f0; border-radius: 10px; padding: .6rem 1rem; overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums }
th { text-align: left; color: #475569; font-weight: 600 } th, td { padding: .3rem .6rem; white-space: nowrap }
tr.teacher td { border-top: 1px solid #e2e8f0 } tr.teacher td.Placement { font-weight: 600 } td { color: #475569 }
tr.student td.Model, tr.student td.NE, tr.student td.AUC { font-weight: 600; color: #0f172a }
td.PASS, td.FAIL, td.INVALID { font-weight: 700 }
td.PASS { color: #15803d } td.FAIL { color: #b91c1c } td.INVALID { color: #b45309 }
p.help, li { color: #475569; font-size: 14px }
"""


def write_report(results: Sequence[PlacementResult], folder: Path, *, title: str) -> Path:
    """Write `report.json`, `report.html` and, beside it, the `plotly.min.js` that it draws with; returns the page.

    The page needs no network.
    """
    from plotly.offline import get_plotlyjs

    write_json(folder / "report.json", {"format": FORMAT, "title": title, "placements": [as_json(r) for r in results]})
    write_file(folder / "plotly.min.js", get_plotlyjs().encode())
    write_file(folder / "report.html", page(results, title=title).encode())
    return folder / "report.html"


def page(results: Sequence[PlacementResult], *, title: str) -> str:
    """HTML of the report; it expects `plotly.min.js` in its own folder."""
    below = "".join(f"<li>{escape(note)}</li>" for note in distinct_notes(results))
    plots = [
        ("ne", "Normalised entropy", ne_figure(results)),
        ("calibration", "Calibration", calibration_figure(results)),
        ("latency", "Latency and budget", latency_figure(results)),
    ]
    sections = "".join(
        f'<h2>{heading}</h2><div class="card">{_plot(figure, name)}</div>' for name, heading, figure in plots
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<style>{STYLE}</style><script src="plotly.min.js"></script></head><body><main>'
        f'<h1>{escape(title)}</h1><div class="card">{_table(results)}</div>'
        f'<ul>{below}</ul><p class="help">{escape(HELP)}</p>{sections}</main></body></html>\n'
    )


def ne_figure(results: Sequence[PlacementResult]) -> Figure:
    """NE of teacher, twin and student by placement; bars are two standard errors over seeds."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for model in MODELS:
        known = [(r.title, e) for r in results if (e := r.estimate("ne", model)) is not None and math.isfinite(e.mean)]
        errors = [2 * e.standard_error if math.isfinite(e.standard_error) else 0.0 for _, e in known]
        figure.add_scatter(
            x=[e.mean for _, e in known],
            y=[title for title, _ in known],
            error_x={"type": "data", "array": errors, "thickness": 1.5},
            mode="markers",
            name=model,
            marker={"color": COLOURS[model], "symbol": SYMBOLS[model], "size": 11},
        )
    figure.update_xaxes(title="normalised entropy (lower is better)")
    figure.update_yaxes(autorange="reversed")
    return _finish(figure, height=160 + 50 * len(results))


def calibration_figure(results: Sequence[PlacementResult]) -> Figure:
    """Predicted against actual rate, on logarithmic axes; the diagonal is ideal."""
    import plotly.graph_objects as go

    figure = go.Figure()
    rates: list[float] = []
    dashes = ("solid", "dash", "dot", "dashdot")
    for position, result in enumerate(results):
        for model, bins in result.calibration.items():
            points = [(one.predicted, one.actual) for one in bins if one.predicted > 0 and one.actual > 0]
            rates += [rate for point in points for rate in point]
            figure.add_scatter(
                x=[predicted for predicted, _ in points],
                y=[actual for _, actual in points],
                mode="lines+markers",
                name=f"{result.title}, {model}",
                line={"color": COLOURS.get(model), "dash": dashes[position % len(dashes)]},
            )
    if rates:
        ends = [min(rates), max(rates)]
        figure.add_scatter(x=ends, y=ends, mode="lines", name="ideal", line={"color": "#94a3b8", "width": 1})
    figure.update_xaxes(title="predicted rate", type="log")
    figure.update_yaxes(title="actual rate", type="log")
    return _finish(figure, height=460)


def latency_figure(results: Sequence[PlacementResult]) -> Figure:
    """Percentiles of the open loop by placement, with the limit as a bar across."""
    import plotly.graph_objects as go

    # Objectives of one placement share its latency.
    measured = {result.placement: result for result in results if result.latency_ms}
    figure = go.Figure()
    for name, colour in PERCENTILES.items():
        bars = {key: result.latency_ms[name] for key, result in measured.items() if name in result.latency_ms}
        figure.add_bar(x=list(bars), y=list(bars.values()), name=name, marker_color=colour)
    figure.add_scatter(
        x=list(measured),
        y=[result.budget.limit_ms for result in measured.values()],
        mode="markers",
        name="limit",
        marker={"symbol": "line-ew", "size": 60, "line": {"width": 3, "color": "#b91c1c"}},
    )
    figure.update_yaxes(title="milliseconds", rangemode="tozero")
    figure.update_layout(barmode="group")
    return _finish(figure, height=380)


def _finish(figure: Figure, *, height: int) -> Figure:
    return figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 10, "r": 10, "t": 20, "b": 10},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02},
    )


def _plot(figure: Figure, name: str) -> str:
    if not any(trace.get("x") for trace in figure.to_dict()["data"]):
        return "<p>Nothing measured.</p>"
    options = {"displaylogo": False, "responsive": True}
    return figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"plot_{name}", config=options)


def _table(results: Sequence[PlacementResult]) -> str:
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = "".join(
        f'<tr class="{model}">{"".join(map(_cell, COLUMNS, cells))}</tr>'
        for result in results
        for model, cells in zip(MODELS, table_lines(result), strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(column: str, text: str) -> str:
    kind = text if column == "Verdict" else column
    return f'<td class="{escape(kind)}">{escape(text)}</td>'
