"""What must hold between the sections of a project file. Each check returns every problem it finds.

Places are paths in the project file; the loader puts the file's name before them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from foundation.config import OF_LAYERS, RECIPE_READS, ModelConfig, ParallelConfig
from foundation.data.schema import (
    ITEM,
    SURFACE,
    USER,
    Feature,
    IdFeature,
    NumberFeature,
    Schema,
    Split,
    Statistic,
    shown_duration,
)
from serving.errors import Problem, did_you_mean, listed
from serving.statistics import IMPRESSIONS
from transfer.config import Placement

Named = tuple[str, Feature]

_RESERVED = (USER, ITEM, SURFACE, "time")
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_LONGEST_NAME, _LONGEST_WINDOW = 63, timedelta(days=36_500)
_INT64 = range(-(2**63), 2**63)


def check_tables(schema: Schema) -> Iterator[Problem]:
    """The two tables every project has; listed integers fit 64 bits; `surface` holds text."""
    for name in (USER, ITEM):
        if name not in schema.tables:
            remedy = did_you_mean(name, schema.tables, f"Add `{name}: {{buckets: 100_000}}`.")
            yield Problem("tables", f"a table `{name}`", listed(schema.tables), remedy)
    if SURFACE in schema.tables and schema.tables[SURFACE].type != "string":
        remedy = "Remove it: the table of surfaces is made of `surfaces`."
        yield Problem(f"tables.{SURFACE}", "type: string", "type: int", remedy)
    for name, table in schema.tables.items():
        for position, value in enumerate(table.values or ()):
            if isinstance(value, int) and value not in _INT64:
                where = f"tables.{name}.values.{position}"
                yield Problem(where, "an integer of 64 bits with sign", str(value), "Use `buckets` instead.")


def check_feature_tables(schema: Schema) -> Iterator[Problem]:
    """Every id feature's table is declared."""
    known = {*schema.tables, SURFACE}
    for path, feature in _features(schema):
        if isinstance(feature, IdFeature) and feature.table_name not in known:
            field = "table" if feature.table else "name"
            otherwise = f"Add `{feature.table_name}` to `tables`, or name the table with `table:`."
            remedy = did_you_mean(feature.table_name, known, otherwise)
            yield Problem(f"{path}.{field}", f"a table: {listed(known)}", f"`{feature.table_name}`", remedy)


def check_feature_names(schema: Schema) -> Iterator[Problem]:
    """Names are unique where they meet: among a request's, a candidate's and a log's features; none is reserved."""
    for path, feature in _features(schema):
        reserved = feature.name in _RESERVED
        if reserved and not (feature.name == SURFACE and path.startswith("data.events.")):
            remedy = "It is there without being declared: remove it, or name it otherwise."
            yield Problem(f"{path}.name", f"a name other than {listed(_RESERVED)}", f"`{feature.name}`", remedy)
    for group in _groups(schema):
        first: dict[str, str] = {}
        for path, feature in group:
            if feature.name in first:
                got = f"`{feature.name}`, which {first[feature.name]} has too"
                yield Problem(f"{path}.name", "a name once among features that meet", got, "Rename one of the two.")
            first.setdefault(feature.name, path)


def check_store_names(schema: Schema) -> Iterator[Problem]:
    """No feature takes the name of a column that the request store has already."""
    bounds = {f"{log}_{end}" for log in schema.data.events for end in ("start", "end")}
    for path, feature in _features(schema):
        taken = bounds if path.startswith("data.users.") else set()
        if feature.name in taken:
            remedy = "Rename the feature, and give its `column`."
            yield Problem(f"{path}.name", "a name that the store does not use", f"`{feature.name}`", remedy)


def check_statistics(schema: Schema) -> Iterator[Problem]:
    """A statistic's source, key parts and objective exist, its windows are above 0, and no two values share a name."""
    for name, statistic in schema.statistics.items():
        where = f"statistics.{name}"
        yield from _repeated(f"{where}.key", statistic.key)
        yield from _windows(where, statistic)
        if statistic.source == IMPRESSIONS or statistic.source in schema.data.events:
            yield from _key_parts(where, statistic, schema)
        else:
            known = (IMPRESSIONS, *schema.data.events)
            remedy = did_you_mean(statistic.source, known, "Add the log to `data.events`, or use one of them.")
            yield Problem(f"{where}.source", f"one of {listed(known)}", f"`{statistic.source}`", remedy)
        if statistic.objective is not None:
            yield from _unknown(f"{where}.objective", statistic.objective, schema.objectives, what="objectives")
            if statistic.source in schema.data.events:
                got, remedy = f"the log `{statistic.source}`", f"Remove `objective`, or use `source: {IMPRESSIONS}`."
                yield Problem(f"{where}.objective", "`source: impressions`, whose rows have labels", got, remedy)
    if schema.statistics and IMPRESSIONS in schema.data.events:
        remedy = "Name the log otherwise."
        yield Problem(f"data.events.{IMPRESSIONS}", "a name that no other source of statistics has", "it", remedy)
    yield from _value_names(schema)


def _windows(where: str, statistic: Statistic) -> Iterator[Problem]:
    yield from _repeated(f"{where}.windows", [_window(window) for window in statistic.windows])
    for position, window in enumerate(statistic.windows):
        if isinstance(window, timedelta) and not timedelta(0) < window <= _LONGEST_WINDOW:
            expected = f"a duration above 0, at most {_LONGEST_WINDOW.days:,} days"
            yield Problem(f"{where}.windows.{position}", expected, _window(window), "Change it, or write `all`.")


def _window(window: timedelta | str) -> str:
    return window if isinstance(window, str) else shown_duration(window)


def _key_parts(where: str, statistic: Statistic, schema: Schema) -> Iterator[Problem]:
    """Each part of the key is an id feature of the source and of the impressions, with values of one type."""
    theirs, shown = schema.key_types(statistic.source), schema.key_types(IMPRESSIONS)
    both = [name for name in theirs if name in shown]
    for position, part in enumerate(statistic.key):
        place, remedy = f"{where}.key.{position}", did_you_mean(part, both, f"Use some of {listed(both)}.")
        numeric = part in _number_names(schema)
        if part not in theirs or part not in shown:
            lacking = f"`{statistic.source}`" if part not in theirs else "the impressions"
            got = f"`{part}`, a number" if numeric else f"`{part}`, which {lacking} lacks"
            yield Problem(place, "an id feature of both the source and the impressions", got, remedy)
        elif theirs[part] != shown[part]:
            got = f"`{part}` of type {theirs[part]} in `{statistic.source}`, {shown[part]} in the impressions"
            yield Problem(place, "raw values of one type", got, "Give both a table of one `type`, or rename one.")


def _value_names(schema: Schema) -> Iterator[Problem]:
    """Names of statistics' values: not too long, and unique among the features beside them."""
    taken = {feature.name: path for path, feature in _features(schema) if not path.startswith("data.events.")}
    for rule in schema.statistic_rules():
        where = f"statistics.{rule.name}"
        longest = max((value.name for value in rule.values), key=len)
        if len(longest) > _LONGEST_NAME:
            expected, got = (
                f"values with names of at most {_LONGEST_NAME} characters",
                f"`{longest}`, of {len(longest)}",
            )
            yield Problem(where, expected, got, "Shorten the name.")
        for value in rule.values:
            if value.name in taken and taken[value.name] != where:
                got = f"`{value.name}`, which {taken[value.name]} has too"
                yield Problem(where, "a name once among features that meet", got, "Rename one of the two.")
            taken.setdefault(value.name, where)


def check_surfaces(schema: Schema) -> Iterator[Problem]:
    """Surfaces are distinct; objectives exist on known surfaces, each on at least one."""
    yield from _repeated("surfaces", schema.surfaces)
    for name, objective in schema.objectives.items():
        where = f"objectives.{name}.surfaces"
        if objective.surfaces is None:
            continue
        if not objective.surfaces:
            yield Problem(where, "at least one surface", "none", "Name one, or remove the field for all of them.")
        yield from _repeated(where, objective.surfaces)
        for position, surface in enumerate(objective.surfaces):
            yield from _unknown(f"{where}.{position}", surface, schema.surfaces, what="surfaces")


def check_conditions(schema: Schema) -> Iterator[Problem]:
    """What an objective is given exists wherever it does, comes to an end, and has a probability to multiply with."""
    for name, objective in schema.objectives.items():
        where, given = f"objectives.{name}.given", objective.given
        if given is None:
            if objective.conditional == "masked":
                yield Problem(where, "an objective, for `conditional: masked`", "nothing", "Name it, or remove both.")
            continue
        yield from _unknown(where, given, schema.objectives, what="objectives")
        if given not in schema.objectives:
            continue
        chain = [name]
        while (following := schema.objectives[chain[-1]].given) in schema.objectives and following not in chain:
            chain.append(following)
        if following == name:
            got = " given ".join(f"`{other}`" for other in (*chain, name))
            yield Problem(where, "a chain that ends", got, "Remove one `given`.")
        lacking = sorted({s for s, n in schema.heads() if n == name} - {s for s, n in schema.heads() if n == given})
        if lacking:
            got, remedy = (
                f"`{given}`, which {listed(lacking)} lacks",
                "Narrow this objective's `surfaces` or widen its.",
            )
            yield Problem(where, "an objective on every surface of this one", got, remedy)
        if objective.conditional == "product" and schema.objectives[given].conditional == "masked":
            got = f"`{given}`, which is masked and has none of all rows"
            yield Problem(
                where, "an objective with a probability of its own", got, "Make both products, or both masked."
            )


def check_weights(schema: Schema) -> Iterator[Problem]:
    """Something is learned."""
    if not any(objective.weight for objective in schema.objectives.values()):
        got, remedy = f"0 for all: {listed(schema.objectives)}", "Set one `weight`, or remove it: the default is 1."
        yield Problem("objectives", "an objective with a weight above 0", got, remedy)


def check_placements(schema: Schema, placements: Mapping[str, Placement]) -> Iterator[Problem]:
    """A placement's surface exists, and its objectives exist on that surface."""
    heads = set(schema.heads())
    for name, placement in placements.items():
        where = f"placements.{name}"
        yield from _unknown(f"{where}.surface", placement.surface, schema.surfaces, what="surfaces")
        yield from _repeated(f"{where}.objectives", placement.objectives)
        for position, objective in enumerate(placement.objectives):
            place = f"{where}.objectives.{position}"
            yield from _unknown(place, objective, schema.objectives, what="objectives")
            absent = objective in schema.objectives and (placement.surface, objective) not in heads
            if absent and placement.surface in schema.surfaces:
                here = [head for surface, head in heads if surface == placement.surface]
                got = f"`{objective}`, which `objectives.{objective}.surfaces` does not put on `{placement.surface}`"
                remedy = f"Remove it, or add `{placement.surface}` to `objectives.{objective}.surfaces`."
                yield Problem(place, f"an objective on `{placement.surface}`: {listed(here)}", got, remedy)


def check_history(schema: Schema, model: ModelConfig, placements: Mapping[str, Placement]) -> Iterator[Problem]:
    """Nobody asks for more events than the longest history holds."""
    wanted = {f"placements.{name}.student.history": place.student.history for name, place in placements.items()}
    wanted["foundation.model.encoder_events"] = model.encoder_events
    log, limit = max(((log, events.limit) for log, events in schema.data.events.items()), key=lambda pair: pair[1])
    for where, asked in wanted.items():
        if asked > limit:
            expected = f"at most {limit}, the `limit` of `data.events.{log}`"
            remedy = f"Lower it, or set `data.events.{log}.limit` to {asked}."
            yield Problem(where, expected, str(asked), remedy)


def check_placements_of_tables(schema: Schema, parallel: ParallelConfig) -> Iterator[Problem]:
    """Tables whose place is given are declared."""
    known = {*schema.tables, SURFACE}
    for table in parallel.tables:
        if table not in known:
            remedy = did_you_mean(table, known, "Remove it.")
            yield Problem(f"foundation.parallel.tables.{table}", f"a table: {listed(known)}", f"`{table}`", remedy)


def check_recipe(model: ModelConfig) -> Iterator[Problem]:
    """The file sets no field that the recipe does not read, or that says more of layers which are not there.

    What `sequence: false` or `interleaving: false` make idle may stay: they are switched off to see what they bring.
    """
    given, reads = model.model_fields_set, RECIPE_READS.get(model.recipe)
    refused: dict[str, tuple[str, str]] = {}
    if reads is not None:
        whole = f"`--set 'foundation.model={{recipe: {model.recipe}}}'` replaces the whole section"
        expected = f"a field that recipe `{model.recipe}` reads: {listed(reads)}"
        refused |= dict.fromkeys(given - reads, (expected, f"Remove it, or choose another `recipe`; {whole}."))
    elif model.sequence and not model.interleaved_layers:
        remedy = "Remove it, or set `interleaved_layers` above 0."
        refused |= dict.fromkeys(given & OF_LAYERS, ("layers of the encoder, which alone read it", remedy))
    if "cross_rank" in given - refused.keys() and not model.cross_layers:
        refused["cross_rank"] = ("cross layers, whose rank it is", "Remove it, or set `cross_layers` above 0.")
    for field, (expected, remedy) in sorted(refused.items()):
        yield Problem(f"foundation.model.{field}", expected, str(getattr(model, field)), remedy)


def check_heads(model: ModelConfig) -> Iterator[Problem]:
    """Attention heads share the width evenly, in pairs of features where a rotary turns them."""
    turns = model.rotary != "none" and "rotary" not in model.unread
    shared, what = (model.width // 2, "half the width") if turns else (model.width, "the width")
    fitting = [heads for heads in range(1, min(shared, 64) + 1) if shared % heads == 0]
    if model.heads not in fitting:
        pairs = f", as `rotary: {model.rotary}` turns pairs" if turns else ""
        allowed = ", ".join(map(str, fitting))
        got = f"{model.heads} with a width of {model.width}"
        yield Problem("foundation.model.heads", f"a divisor of {what}{pairs}: {allowed}", got, "Change one of the two.")


def check_cls_tokens(model: ModelConfig) -> Iterator[Problem]:
    """A layer sums up what CLS tokens became in an earlier one; with `compute_skip` every second sums up nothing."""
    needed = 3 if model.compute_skip else 2
    if model.cls_tokens and "cls_tokens" not in model.unread and model.interleaved_layers < needed:
        skipping = " with `compute_skip`" if model.compute_skip else ""
        got = f"{model.interleaved_layers} with `cls_tokens: {model.cls_tokens}`"
        expected = f"at least {needed}{skipping}, since the first layer reads CLS tokens that saw no event"
        yield Problem("foundation.model.interleaved_layers", expected, got, "Raise it, or remove `cls_tokens`.")


def check_split(split: Split) -> Iterator[Problem]:
    """The split lies in this century; a number there is read as seconds since 1970, and 20171101 is no such number."""
    start = split.test_from if split.test_from.tzinfo else split.test_from.replace(tzinfo=UTC)
    if not _EARLIEST <= start < _LATEST:
        remedy = "Write for example `2017-11-01` or `2017-11-01T12:00:00Z`."
        yield Problem("split.test_from", "a time from 2000 to 2099", start.isoformat(), remedy)


def check_finite(content: Any, path: str = "") -> Iterator[Problem]:
    """No number of the file is infinite."""
    if isinstance(content, float) and not math.isfinite(content):
        yield Problem(path, "a finite number", str(content), "Write a large number instead.")
    elif isinstance(content, Mapping | list | tuple):
        parts = content.items() if isinstance(content, Mapping) else enumerate(content)
        for key, value in parts:
            yield from check_finite(value, f"{path}.{key}" if path else str(key))


def _features(schema: Schema) -> Iterator[Named]:
    """Every declared feature with its path, once."""
    seen: set[str] = set()
    for group in _groups(schema):
        for path, feature in group:
            if path not in seen:
                seen.add(path)
                yield path, feature


def _groups(schema: Schema) -> Iterator[list[Named]]:
    """Features that a model sees side by side, so that their names must differ."""
    data = schema.data
    items = _named("data.items.features", data.items.features if data.items else ())
    users = _named("data.users.features", data.users.features if data.users else ())
    yield users + _named("data.impressions.context", data.impressions.context)
    yield items + _named("data.impressions.candidate", data.impressions.candidate)
    for name, log in data.events.items():
        yield items + _named(f"data.events.{name}.features", log.features)


def _named(path: str, features: Sequence[Feature]) -> list[Named]:
    return [(f"{path}.{position}", feature) for position, feature in enumerate(features)]


def _number_names(schema: Schema) -> set[str]:
    return {feature.name for _, feature in _features(schema) if isinstance(feature, NumberFeature)}


def _repeated(where: str, names: Sequence[str]) -> Iterator[Problem]:
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem(where, "each name once", f"`{name}` {count} times", "Remove the repetition.")


def _unknown(where: str, name: str, known: Sequence[str] | Mapping[str, Any], *, what: str) -> Iterator[Problem]:
    if name not in known:
        remedy = did_you_mean(name, known, f"Add it to `{what}`, or use one of them.")
        yield Problem(where, f"one of `{what}`: {listed(known)}", f"`{name}`", remedy)
