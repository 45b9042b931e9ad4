"""The project file: what a sound one means, and what is said of a faulty one."""

from __future__ import annotations

import contextlib
import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemcut.project import LoadedProject, load_project
from gemcut.reference import EXAMPLE, PAGE, page
from gemcut.yaml_file import dump, parse
from serving.errors import Problem, ProjectError

SOUND = """\
name: shop
tables:
  user: {buckets: 1000}
  item: {buckets: 1000}
  store: {buckets: 50}
data:
  impressions:
    files: impressions.parquet
    context: [{kind: id, name: store}]
    candidate: [{kind: number, name: price}]
  events:
    purchases:
      files: events.parquet
      features: [{kind: number, name: quantity}]
  items: {files: items.parquet, features: [{kind: number, name: size}]}
  users: {files: users.parquet, features: [{kind: number, name: age}]}
surfaces: [home, search]
objectives:
  click: {}
  buy: {delay: 7d, surfaces: [home]}
split: {test_from: 2017-11-01}
placements:
  front: {surface: home, objectives: [click, buy], budget: {limit_ms: 5, rate_per_s: 100}}
"""
TWO_OF_A_NAME = """\
statistics:
  seen: {source: impressions, key: [item], objective: click}
  seen_click: {source: impressions, key: [item], objective: rate}
"""
LAST_OF_DATA = """\
features: [{kind: number, name: quantity}]
  items: {files: items.parquet, features: [{kind: number, name: size}]}
  users: {files: users.parquet, features: [{kind: number, name: age}]}
"""


def load(folder: Path, text: str, *overrides: str) -> LoadedProject:
    path = folder / "project.yaml"
    path.write_text(text, encoding="utf-8")
    return load_project(path, overrides)


def problems(folder: Path, text: str, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(ProjectError) as caught:
        load(folder, text, *overrides)
    return caught.value.problems


def changed(old: str, new: str, text: str = SOUND) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def test_a_sound_file_gives_the_project_its_folder_and_a_digest(tmp_path):
    loaded = load(tmp_path, SOUND)

    assert loaded.root == tmp_path
    assert loaded.path == tmp_path / "project.yaml"
    assert loaded.workdir == tmp_path / "work"
    assert loaded.project.placements["front"].objectives == ("click", "buy")
    assert loaded.project.objectives["buy"].delay == timedelta(days=7)
    assert len(loaded.digest) == 64
    assert loaded.digest == loaded.project.digest()


def test_a_digest_tells_values_apart_and_forgets_layout(tmp_path):
    plain = load(tmp_path, SOUND).digest
    in_json = json.dumps(parse(SOUND, "") | {"name": "shop"})

    assert in_json.startswith("{")
    assert load(tmp_path, in_json).digest == plain
    assert load(tmp_path, SOUND + "workdir: work\n").digest == plain
    assert load(tmp_path, SOUND + "workdir: other\n").digest != plain


@pytest.mark.parametrize("text", ["2017-11-01", "2017-11-01T00:00:00", "2017-11-01 00:00:00", "'2017-11-01'"])
def test_a_date_alone_is_its_midnight(tmp_path, text):
    assert load(tmp_path, changed("2017-11-01", text)).project.split.test_from == datetime(2017, 11, 1)  # noqa: DTZ001


def test_a_time_zone_is_kept(tmp_path):
    loaded = load(tmp_path, changed("2017-11-01", "2017-11-01T02:00:00+02:00"))

    assert loaded.project.split.test_from == datetime(2017, 11, 1, tzinfo=UTC)


def test_words_that_other_yaml_readers_take_for_truth_values_are_surfaces(tmp_path):
    text = changed("[home, search]", "[home, on, no, 2017-01-01]")

    assert load(tmp_path, text).project.surfaces == ("home", "on", "no", "2017-01-01")


def test_an_exponent_without_a_dot_is_a_number(tmp_path):
    loaded = load(tmp_path, SOUND + "foundation: {training: {dense_learning_rate: 1e-4}}\n")

    assert loaded.project.foundation.training.dense_learning_rate == 1e-4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7d", 604_800),
        ("36h", 129_600),
        ("90m", 5400),
        ("90s", 90),
        ("5us", 5e-6),
        ("12:00:00", 43_200),
        ("PT12H", 43_200),
    ],
)
def test_a_duration_is_a_number_and_its_unit_or_as_iso_has_it(tmp_path, text, seconds):
    project = load(tmp_path, changed("delay: 7d", f"delay: {text}")).project

    assert project.objectives["buy"].delay == timedelta(seconds=seconds)


def test_lengths_that_the_file_does_not_name_are_at_most_those_of_the_longest_log(tmp_path):
    loaded = load(tmp_path, changed("files: events.parquet", "files: events.parquet\n      limit: 20"))

    assert loaded.project.foundation.model.encoder_events == 20
    assert loaded.project.placements["front"].student.history == 20
    assert load(tmp_path, loaded.project.to_yaml()).digest == loaded.digest


@pytest.mark.parametrize(
    ("model", "absent"),
    [
        ("{recipe: din}", {"match", "heads", "cross_layers"}),
        ("{recipe: dcnv2}", {"match", "heads", "encoder_events"}),
        ("{recipe: fast, cross_layers: 0, sequence: false}", {"cross_rank", "encoder_events", "heads"}),
    ],
)
def test_a_resolved_file_leaves_out_what_its_model_does_not_read_so_that_it_loads_again(tmp_path, model, absent):
    loaded = load(tmp_path, SOUND + f"foundation: {{model: {model}}}\n")

    assert not absent & loaded.project.resolved()["foundation"]["model"].keys()
    assert load(tmp_path, loaded.project.to_yaml()).project == loaded.project


def test_a_part_can_be_switched_off_although_the_file_says_more_of_it(tmp_path):
    file = SOUND + "foundation: {model: {interleaved_layers: 2, rotary: position, personalisation: vector}}\n"
    without = load(tmp_path, file, "foundation.model.sequence=false").project.resolved()["foundation"]["model"]
    assert not {"interleaved_layers", "rotary", "personalisation"} & without.keys()
    alone = load(tmp_path, file, "foundation.model.interleaving=false").project.resolved()["foundation"]["model"]
    assert "rotary" in alone
    assert "personalisation" not in alone


def test_sizes_of_a_recipe_are_not_set_by_the_file(tmp_path):
    model = load(tmp_path, SOUND, "foundation.model={recipe: fast, hidden: 64}").project.foundation.model

    assert (model.cross_rank, model.hidden) == (64, 64)
    assert model.model_fields_set == {"recipe", "hidden"}


PURCHASES = SOUND[SOUND.index("\n    purchases:") : SOUND.index("\n  items: {files")]
FIELDS = {  # name: (what is changed, to what, where, words of the message)
    "misspelt key": (
        "rate_per_s: 100",
        "rate_pr_s: 100",
        "placements.front.budget.rate_pr_s",
        "Did you mean `rate_per_s`",
    ),
    "misspelt section": ("objectives:\n", "objectivs:\n", "objectivs", "Did you mean `objectives`"),
    "key nobody knows": ("name: shop", "name: shop\nzebra: 1", "zebra", "unknown key `zebra` Remove it"),
    "key of a feature": (
        "name: price",
        "name: price, colum: p",
        "data.impressions.candidate.0.colum",
        "Did you mean `column`",
    ),
    "missing field": (", rate_per_s: 100", "", "placements.front.budget.rate_per_s", "nothing Add `rate_per_s"),
    "no such kind": ("{kind: id,", "{kind: idd,", "data.impressions.context.0.kind", "'idd' Did you mean `id`"),
    "no kind": ("{kind: id,", "{", "data.impressions.context.0.kind", "`id`, `number` nothing Add `kind: id`"),
    "no such choice": (
        "name: price",
        "name: price, rule: {transform: lg1p}",
        "data.impressions.candidate.0.rule.transform",
        "`identity`, `log1p` 'lg1p' Did you mean `log1p`",
    ),
    "unit": (
        "files: events.parquet",
        "files: events.parquet\n      unit: seconds",
        "data.events.purchases.unit",
        "`ms`, `ns`, `s`, `us` 'seconds'",
    ),
    "text for a number": ("limit_ms: 5", "limit_ms: five", "placements.front.budget.limit_ms", "number 'five'"),
    "quoted number": ("limit_ms: 5", "limit_ms: '5'", "placements.front.budget.limit_ms", "'5' without quotes"),
    "truth for a number": ("limit_ms: 5", "limit_ms: true", "placements.front.budget.limit_ms", "number True"),
    "fraction for a whole number": (
        "store: {buckets: 50}",
        "store: {buckets: 50.5}",
        "tables.store.buckets",
        "integer 50.5",
    ),
    "too small": ("limit_ms: 5", "limit_ms: -5", "placements.front.budget.limit_ms", "greater than 0 -5"),
    "infinite": ("limit_ms: 5", "limit_ms: .inf", "placements.front.budget.limit_ms", "finite inf"),
    "number for text": ("[home, search]", "[home, 7]", "surfaces.1", "string 7 quotes"),
    "nothing for a section": ("tables:", "tables: {}\nother:", "other", "unknown key"),
    "name with a capital": ("name: shop", "name: Shop", "name", "'Shop' a-z"),
    "entry with a capital": ("front: {", "Front: {", "placements.Front", "'Front' a-z"),
    "duration without unit": ("delay: 7d", "delay: 7", "objectives.buy.delay", "duration 7 `7d`"),
    "neither steps nor a time": (
        "name: shop",
        "name: shop\nfoundation: {training: {checkpoint_every: often}}",
        "foundation.training.checkpoint_every",
        "integer duration 'often'",
    ),
    "no step": (
        "name: shop",
        "name: shop\nfoundation: {training: {checkpoint_every: 0}}",
        "foundation.training.checkpoint_every",
        "greater 1 duration 0",
    ),
    "negative duration": ("delay: 7d", "delay: -1d", "objectives.buy.delay", "greater 0 '-1d'"),
    "text for a list": ("[home, search]", "home", "surfaces", "a list 'home' brackets"),
    "null for a section": ("name: shop", "name: shop\nfoundation: null", "foundation", "a section None fields"),
    "no date": ("2017-11-01", "November", "split.test_from", "'November' 2017-11-01"),
    "number for a date": ("2017-11-01", "20171101", "split.test_from", "20171101"),
    "two vocabularies": ("store: {buckets: 50}", "store: {buckets: 50, values: [1]}", "tables.store", "exactly one of"),
    "no vocabulary": ("store: {buckets: 50}", "store: {type: int}", "tables.store", "exactly one of"),
    "vocabulary of another type": ("store: {buckets: 50}", "store: {values: [a]}", "tables.store", "type int 'a'"),
    "value of no type": ("store: {buckets: 50}", "store: {values: [1.5]}", "tables.store.values.0", "1.5"),
    "no events": (PURCHASES, " {}", "data.events", "at least 1"),
}
SECTIONS = {
    "table of a feature": (
        "name: store}",
        "name: stor}",
        "data.impressions.context.0.name",
        "`stor` Did you mean `store`",
    ),
    "named table": ("name: store}", "name: s, table: shop}", "data.impressions.context.0.table", "`shop`"),
    "no user table": ("  user: {buckets: 1000}", "  usr: {buckets: 1000}", "tables", "`user` Did you mean `usr`"),
    "no item table": ("  item: {buckets: 1000}\n", "", "tables", "`item` Add"),
    "surface table of numbers": ("  store: {", "  surface: {buckets: 5}\n  store: {", "tables.surface", "type: string"),
    "listed id beyond 64 bits": (
        "store: {buckets: 50}",
        f"store: {{values: [1, {2**63}]}}",
        "tables.store.values.1",
        f"64 bits {2**63}",
    ),
    "reserved name": (
        "name: price",
        "name: item",
        "data.impressions.candidate.0.name",
        "`item` without being declared",
    ),
    "same name in a list": (
        "[{kind: id, name: store}]",
        "[{kind: id, name: store}, {kind: number, name: store}]",
        "data.impressions.context.1.name",
        "`store` data.impressions.context.0",
    ),
    "same name where tables meet": (
        "name: price",
        "name: size",
        "data.impressions.candidate.0.name",
        "`size` data.items.features.0",
    ),
    "name of the store's column": (
        "name: quantity",
        "name: time",
        "data.events.purchases.features.0.name",
        "a name other than",
    ),
    "name of the store's bounds": ("name: age", "name: purchases_end", "data.users.features.0.name", "`purchases_end`"),
    "surface twice": ("[home, search]", "[home, search, home]", "surfaces", "`home` 2 times"),
    "surface of an objective": (
        "surfaces: [home]}",
        "surfaces: [hom]}",
        "objectives.buy.surfaces.0",
        "`hom` Did you mean `home`",
    ),
    "objective without surfaces": ("surfaces: [home]}", "surfaces: []}", "objectives.buy.surfaces", "at least one"),
    "surface of a placement": (
        "surface: home,",
        "surface: serch,",
        "placements.front.surface",
        "`serch` Did you mean `search`",
    ),
    "objective of a placement": (
        "[click, buy]",
        "[clik, buy]",
        "placements.front.objectives.0",
        "`clik` Did you mean `click`",
    ),
    "unknown condition": ("{delay: 7d,", "{given: clik,", "objectives.buy.given", "`clik` Did you mean `click`"),
    "given itself": ("click: {}", "click: {given: click}", "objectives.click.given", "`click` given `click` ends"),
    "a ring": (
        "click: {}\n  buy: {delay: 7d, surfaces: [home]}",
        "click: {given: buy}\n  buy: {given: again}\n  again: {given: click}",
        "objectives.again.given",
        "`again` given `click` given `buy` given `again`",
    ),
    "given what a surface lacks": (
        "click: {}",
        "click: {given: buy}",
        "objectives.click.given",
        "`buy` `search` lacks",
    ),
    "masked by nothing": (
        "click: {}",
        "click: {conditional: masked}",
        "objectives.click.given",
        "`conditional: masked` nothing",
    ),
    "a product with what is masked": (
        "click: {}\n  buy: {delay: 7d, surfaces: [home]}",
        "seen: {}\n  click: {given: seen, conditional: masked}\n  buy: {given: click}",
        "objectives.buy.given",
        "`click` masked",
    ),
    "no negatives kept": (
        "click: {}",
        "click: {negatives_kept: 0}",
        "objectives.click.negatives_kept",
        "greater than 0",
    ),
    "objective twice": ("[click, buy]", "[click, buy, click]", "placements.front.objectives", "`click` 2 times"),
    "objective of another surface": (
        "surface: home,",
        "surface: search,",
        "placements.front.objectives.1",
        "`search` `click` `buy` `objectives.buy.surfaces`",
    ),
    "history of a student": (
        "surface: home,",
        "surface: home, student: {history: 300},",
        "placements.front.student.history",
        "at most 256 300 data.events.purchases.limit",
    ),
    "history of the foundation model": (
        "name: shop",
        "name: shop\nfoundation: {model: {encoder_events: 500}}",
        "foundation.model.encoder_events",
        "at most 256 500",
    ),
    "hidden layer of no width": (
        "surface: home,",
        "surface: home, student: {hidden: [0]},",
        "placements.front.student.hidden.0",
        "1 0",
    ),
    "seed of more than 63 bits": (
        "name: shop",
        f"name: shop\nfoundation: {{training: {{seed: {2**63}}}}}",
        "foundation.training.seed",
        f"{2**63 - 1} {2**63}",
    ),
    "heads": (
        "name: shop",
        "name: shop\nfoundation: {model: {heads: 3, width: 32}}",
        "foundation.model.heads",
        "divisor 3 32",
    ),
    "heads of odd width under a rotary": (
        "name: shop",
        "name: shop\nfoundation: {model: {heads: 4, width: 12, rotary: position, interleaved_layers: 1}}",
        "foundation.model.heads",
        "half `rotary: position` 1, 2, 3, 6 4 12",
    ),
    "CLS tokens that no layer reads after they saw events": (
        "name: shop",
        "name: shop\nfoundation: {model: {cls_tokens: 2, interleaved_layers: 1}}",
        "foundation.model.interleaved_layers",
        "2 1 `cls_tokens:",
    ),
    "CLS tokens that the second layer skips": (
        "name: shop",
        "name: shop\nfoundation: {model: {cls_tokens: 2, interleaved_layers: 2, compute_skip: true}}",
        "foundation.model.interleaved_layers",
        "3 2 `compute_skip`",
    ),
    "field that the recipe does not read, at its default": (
        "name: shop",
        "name: shop\nfoundation: {model: {recipe: din, match: true}}",
        "foundation.model.match",
        "`din` `encoder_events` True Remove",
    ),
    "field of an encoder without layers": (
        "name: shop",
        "name: shop\nfoundation: {model: {rotary: position}}",
        "foundation.model.rotary",
        "`interleaved_layers` above 0 position Remove",
    ),
    "events that a recipe reads, but not its switch": (
        "name: shop",
        "name: shop\nfoundation: {model: {recipe: din, sequence: false, encoder_events: 8}}",
        "foundation.model.sequence",
        "`din` False --set",
    ),
    "rank of no cross layers": (
        "name: shop",
        "name: shop\nfoundation: {model: {cross_layers: 0, cross_rank: 8}}",
        "foundation.model.cross_rank",
        "`cross_layers` above 0 8",
    ),
    "a place of a table that there is not": (
        "name: shop",
        "name: shop\nfoundation: {parallel: {tables: {itm: {kind: row_wise}}}}",
        "foundation.parallel.tables.itm",
        "`itm` `item` mean",
    ),
    "ranks of a table that is on all": (
        "name: shop",
        "name: shop\nfoundation: {parallel: {tables: {item: {kind: row_wise, ranks: [0]}}}}",
        "foundation.parallel.tables.item",
        "all ranks leave out",
    ),
    "columns that nobody holds": (
        "name: shop",
        "name: shop\nfoundation: {parallel: {tables: {item: {kind: column_wise}}}}",
        "foundation.parallel.tables.item",
        "at least two [0, 1]",
    ),
    "nothing to learn": (
        "click: {}\n  buy: {delay: 7d, surfaces: [home]}",
        "click: {weight: 0}\n  buy: {weight: 0}",
        "objectives",
        "above 0 `buy`, `click`",
    ),
    "budget": (
        "rate_per_s: 100",
        "rate_per_s: 100, max_duration_s: 2",
        "placements.front.budget",
        "min_duration_s max_duration_s 2 5",
    ),
    "source of a statistic": (
        "name: shop",
        "name: shop\nstatistics: {bought: {source: purchase, key: [user, item]}}",
        "statistics.bought.source",
        "impressions `purchase` Did you mean `purchases`",
    ),
    "key that the log lacks": (
        "name: shop",
        "name: shop\nstatistics: {bought: {source: purchases, key: [item, store]}}",
        "statistics.bought.key.1",
        "`store` `purchases` lacks",
    ),
    "key that the impressions lack": (
        LAST_OF_DATA,
        "features: [{kind: id, name: shelf, table: store}]\nstatistics: {bought: {source: purchases, key: [shelf]}}\n",
        "statistics.bought.key.0",
        "`shelf` the impressions lacks",
    ),
    "key of another type": (
        LAST_OF_DATA,
        "features: [{kind: id, name: store, table: surface}]\nstatistics: {had: {source: purchases, key: [store]}}\n",
        "statistics.had.key.0",
        "`store` string int",
    ),
    "key that is a number": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [price]}}",
        "statistics.seen.key.0",
        "`price`, a number",
    ),
    "key with a part twice": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item, item]}}",
        "statistics.seen.key",
        "`item` 2 times",
    ),
    "no key": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: []}}",
        "statistics.seen.key",
        "at least 1",
    ),
    "objective of a statistic": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], objective: clik}}",
        "statistics.seen.objective",
        "`clik` Did you mean `click`",
    ),
    "objective of a log": (
        "name: shop",
        "name: shop\nstatistics: {bought: {source: purchases, key: [item], objective: click}}",
        "statistics.bought.objective",
        "source: impressions `purchases`",
    ),
    "window of no length": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], windows: [all, PT0S]}}",
        "statistics.seen.windows.1",
        "above 0 0s",
    ),
    "window of less than nothing": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], windows: [-1d]}}",
        "statistics.seen.windows.0",
        "0 'all' '-1d'",
    ),
    "window of more than a century": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], windows: [P40000D]}}",
        "statistics.seen.windows.0",
        "36,500 40000d",
    ),
    "window twice": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], windows: [7d, 168h]}}",
        "statistics.seen.windows",
        "`7d` 2 times",
    ),
    "window that is none": (
        "name: shop",
        "name: shop\nstatistics: {seen: {source: impressions, key: [item], windows: [week]}}",
        "statistics.seen.windows.0",
        "duration all week `36h`",
    ),
    "statistic with the name of a feature": (
        "[{kind: number, name: price}]\n" + SOUND.partition("name: price}]\n")[2].partition("placements:")[0],
        "[{kind: number, name: seen_recency}]\n"
        + SOUND.partition("name: price}]\n")[2].partition("placements:")[0]
        + "statistics: {seen: {source: impressions, key: [item]}}\n",
        "statistics.seen",
        "`seen_recency` data.impressions.candidate.0",
    ),
    "statistics with one name": (
        "  buy: {delay: 7d, surfaces: [home]}\n",
        "  buy: {delay: 7d, surfaces: [home]}\n  rate: {}\n" + TWO_OF_A_NAME,
        "statistics.seen_click",
        "`seen_click_rate_all` statistics.seen",
    ),
    "statistic with a long name": (
        "name: shop",
        f"name: shop\nstatistics: {{{'s' * 60}: {{source: impressions, key: [item]}}}}",
        f"statistics.{'s' * 60}",
        "63 Shorten",
    ),
    "log with the name of the impressions": (
        LAST_OF_DATA,
        "features: []\n    impressions: {files: x.parquet}\nstatistics: {seen: {source: impressions, key: [item]}}\n",
        "data.events.impressions",
        "no other source",
    ),
    "time before this century": ("2017-11-01", "1917-11-01", "split.test_from", "2000 1917"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in (FIELDS | SECTIONS).items()])
def test_a_fault_is_named_with_file_path_value_and_remedy(tmp_path, case):
    old, new, path, words = case
    found = problems(tmp_path, changed(old, new))
    here = [problem for problem in found if problem.where == f"{tmp_path / 'project.yaml'}: {path}"]

    assert len(here) == 1, [str(problem) for problem in found]
    missing = [word for word in words.split() if word not in str(here[0])]
    assert not missing, f"{missing} not in {here[0]}"
    assert here[0].remedy


def test_all_faults_of_a_file_are_listed_at_once(tmp_path):
    text = SOUND
    applied = [
        "misspelt key",
        "no such kind",
        "number for text",
        "name with a capital",
        "duration without unit",
        "no date",
        "surface of an objective",
        "surface of a placement",
        "same name where tables meet",
    ]
    paths = set()
    for name in applied:
        old, new, path, _ = (FIELDS | SECTIONS)[name]
        text = changed(old, new, text)
        paths.add(f"{tmp_path / 'project.yaml'}: {path}")

    found = {problem.where for problem in problems(tmp_path, text)}

    assert paths <= found
    assert not any("stand_in" in str(problem) for problem in problems(tmp_path, text))


def test_a_faulty_field_hides_no_fault_between_sections_and_makes_none(tmp_path):
    text = changed("store: {buckets: 50}", "store: {buckets: none}")
    text = changed("[click, buy]", "[click, by]", text)

    found = [problem.where.partition(": ")[2] for problem in problems(tmp_path, text)]

    assert found == ["tables.store.buckets", "placements.front.objectives.1"]


@pytest.mark.parametrize("windows", ["[7]", "[week, 7]"])
def test_faulty_entries_of_a_list_do_not_make_it_too_short(tmp_path, windows):
    found = problems(
        tmp_path, SOUND + f"statistics: {{seen: {{source: impressions, key: [item], windows: {windows}}}}}\n"
    )

    assert [problem.where.rpartition(".")[2] for problem in found] == [str(at) for at in range(len(found))]
    assert all("`36h`" in problem.remedy for problem in found)


SYNTAX = {
    "unclosed bracket": ("surfaces: [home, search]", "surfaces: [home, search", ", line"),
    "tab": ("  user:", "\tuser:", "line 3, column 1"),
    "tag of python": ("name: shop", "name: !!python/object:os.system {}", "line 1, column 7"),
    "key twice": ("name: shop", "name: shop\nname: ship", "line 2, column 1 `name` again, first on line 1"),
    "key twice, deeper": (
        "  user: {buckets: 1000}",
        "  user: {buckets: 1000, buckets: 5}",
        "line 3, column 25 `buckets`",
    ),
    "two documents": ("name: shop", "name: shop\n---\nname: ship", "line 2"),
    "unknown alias": ("name: shop", "name: *shop", "line 1, column 7 shop"),
    "value inside itself": ("name: shop", "name: &shop [*shop]", "contains itself"),
    "control character": ("name: shop", "name: sh\x07op", "character"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in SYNTAX.items()])
def test_what_is_no_yaml_is_named_with_file_line_and_column(tmp_path, case):
    old, new, words = case
    [problem] = problems(tmp_path, changed(old, new))

    assert problem.where.startswith(str(tmp_path / "project.yaml"))
    missing = [word for word in words.split(" ") if word not in str(problem)]
    assert not missing, f"{missing} not in {problem}"


def test_every_repeated_key_is_listed(tmp_path):
    text = changed("name: shop", "name: shop\nname: ship", changed("{delay: 7d,", "{delay: 7d, delay: 8d,"))

    assert len(problems(tmp_path, text)) == 2


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"text", b"\xff\xfe\xfa", b"name: \xe9"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, content):
    path = tmp_path / "project.yaml"
    path.write_bytes(content)

    with pytest.raises(ProjectError, match=r"project\.yaml"):
        load_project(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ProjectError, match=r"absent\.yaml.*No such file"):
        load_project(tmp_path / "absent.yaml")
    with pytest.raises(ProjectError, match="directory"):
        load_project(tmp_path)


def test_set_changes_values_lists_and_absent_sections(tmp_path):
    project = load(
        tmp_path,
        SOUND,
        "foundation.model.width=64",
        "placements.front.transfer.soft_labels=null",
        "data.impressions.context.0.column=store_id",
        "surfaces=[home, search, cart]",
        "surfaces.2=basket",
        "tables.badge={type: string, buckets: 3}",
        "objectives.buy.delay=2d",
    ).project

    assert project.foundation.model.width == 64
    assert project.placements["front"].transfer.soft_labels is None
    assert project.data.impressions.context[0].column == "store_id"
    assert project.surfaces == ("home", "search", "basket")
    assert project.tables["badge"].buckets == 3
    assert project.objectives["buy"].delay == timedelta(days=2)


OVERRIDES = {
    "misspelt field": ("foundation.modl.width=1", "`modl` Did you mean `model`"),
    "misspelt last field": ("foundation.model.widht=1", "`widht` Did you mean `width`"),
    "misspelt entry": ("placements.frnt.surface=home", "`frnt` Did you mean `front`"),
    "place beyond a list": ("surfaces.2=a", "0 to 1 `2`"),
    "no place": ("surfaces.first=a", "0 to 1 `first`"),
    "path through a value": ("name.first=a", "`first` no parts"),
    "path through a list's entry": ("surfaces.0.first=a", "`first` no parts"),
    "no equals sign": ("foundation.model.width", "`path.to.field=value`"),
    "no path": ("=5", "`path.to.field=value`"),
    "no YAML": ("surfaces=[a", "YAML"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in OVERRIDES.items()])
def test_a_faulty_set_is_named(tmp_path, case):
    override, words = case
    [problem] = problems(tmp_path, SOUND, override)

    assert problem.where.startswith(f"--set {override}")
    missing = [word for word in words.split(" ") if word not in str(problem)]
    assert not missing, f"{missing} not in {problem}"


def test_all_faulty_sets_are_listed_at_once(tmp_path):
    faulty = [override for override, _ in OVERRIDES.values()]

    assert len(problems(tmp_path, SOUND, *faulty)) == len(faulty)


def test_set_values_are_checked_like_the_file(tmp_path):
    [problem] = problems(tmp_path, SOUND, "foundation.model.width=wide")

    assert problem.where.endswith("foundation.model.width")
    assert "'wide'" in problem.got


def test_a_project_and_what_was_loaded_are_frozen(tmp_path):
    loaded = load(tmp_path, SOUND)

    with pytest.raises(ValueError, match="frozen"):
        loaded.project.name = "other"
    with pytest.raises(AttributeError):
        loaded.digest = "other"


names = st.from_regex(r"\A[a-z][a-z0-9_]{0,8}\Z")
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
rates = st.floats(1e-9, 1e6)


@st.composite
def documents(draw):
    """Sound projects, with surfaces named by any text."""
    surfaces = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    objectives = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    listed = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    document = parse(SOUND, "")
    document["tables"]["badge"] = {"type": "string", "values": listed}
    document["surfaces"] = surfaces
    document["objectives"] = {
        name: {
            "delay": draw(st.sampled_from(["7d", "PT12H", "1:30:00", "P1DT0.000001S"])),
            "weight": draw(st.floats(0.001, 9)),
        }
        for name in objectives
    }
    document["statistics"] = {
        name: {
            "source": "impressions",
            "key": draw(st.lists(st.sampled_from(["user", "item", "surface", "store"]), min_size=1, unique=True)),
            "windows": draw(st.sampled_from([["all"], ["7d"], ["P1D", "36h", "all"]])),
            "recency": draw(st.booleans()),
            "objective": draw(st.sampled_from([None, *objectives])),
        }
        for name in draw(st.lists(st.sampled_from(["x1", "y2", "z3"]), unique=True))
    }
    document["split"]["test_from"] = draw(st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31))).isoformat()  # noqa: DTZ001
    document["placements"] = {
        draw(names): {
            "surface": draw(st.sampled_from(surfaces)),
            "objectives": objectives[: draw(st.integers(1, len(objectives)))],
            "student": {"hidden": draw(st.lists(st.integers(1, 99), min_size=1, max_size=3))},
            "transfer": draw(st.sampled_from([{}, {"soft_labels": None}])),
            "budget": {"limit_ms": draw(rates), "rate_per_s": draw(rates)},
        }
    }
    document["foundation"] = {"training": {"dense_learning_rate": draw(rates), "seed": draw(st.integers(0, 2**40))}}
    return document


@settings(max_examples=40)
@given(documents())
def test_the_resolved_file_loads_to_the_same_project_and_digest(tmp_path_factory, document):
    folder = tmp_path_factory.mktemp("project")
    first = load(folder, dump(document))
    second = load(folder, first.project.to_yaml())

    assert second.project == first.project
    assert second.digest == first.digest
    assert second.project.resolved() == first.project.resolved()
    assert first.project.surfaces == tuple(document["surfaces"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    )
)
def test_yaml_is_read_back_as_it_was_written(content):
    assert parse(dump({"content": content}), "")["content"] == content


@given(st.data())
def test_no_damage_to_a_file_gives_anything_but_a_project_error(tmp_path_factory, data):
    """Any value in any place, and any place cut out."""
    document = copy.deepcopy(parse(SOUND, ""))
    document["statistics"] = {"seen": {"source": "impressions", "key": ["item"], "windows": ["7d"], "objective": "buy"}}
    here, key = document, None
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], dict | list) or not here[key] or data.draw(st.booleans()):
            break
        here = here[key]
    if data.draw(st.booleans()):
        del here[key]
    else:
        here[key] = data.draw(
            st.sampled_from([None, True, -1, 0, 2**70, 0.5, float("inf"), "", "x", [], {}, ["x"], {"x": 1}])
        )
    with contextlib.suppress(ProjectError):
        assert load(tmp_path_factory.mktemp("project"), dump(document)).project


def test_the_reference_is_that_of_the_models():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m gemcut.reference`"


@pytest.mark.parametrize(
    "row",
    [
        "| `surfaces` | list of text, 1 or more | required | Every surface",
        "| `unit` | `s` or `ms` or `us` or `ns` | – | Unit of `time`",
        "| `transform` | `identity` or `log1p` | `identity` | ",
        "| `delay` | duration, at least 0 | 0 | How long",
        "| `encoder_events` | whole number, at least 1, at most 16,384 | `64` | ",
        "| `limit_ms` | number, above 0 | required | Latency limit in milliseconds. |",
        "| `din` | `encoder_events: 50` | `recipe`, `width`, `encoder_events`, `hidden` |",
    ],
)
def test_the_reference_says_what_type_limits_and_default_a_field_has(row):
    assert f"\n{row}" in page()


def test_the_example_of_the_reference_loads(tmp_path):
    assert f"```yaml\n{EXAMPLE}```" in PAGE.read_text(encoding="utf-8")
    assert load(tmp_path, EXAMPLE).project.name == "shop"
