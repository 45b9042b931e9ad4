"""A whole comparison on a tiny project: all models score the same rows by both protocols, and go on where they were."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import ablation, command, dcnv2, plain_din, quality, trees
from benchmarks.ablation import Variant, read_variants
from benchmarks.foundation import FROZEN, PROGRESSIVE, Wanted, score_foundation
from benchmarks.opened import opened
from eval.metrics.ranking import auc
from eval.predictions import load_predictions
from foundation.data.store import moment_of
from foundation.soft_labels import read_soft_labels
from gemcut.workspace import Workspace
from serving.errors import UserError

FAST = ["--set", "foundation.model={recipe: fast, width: 8, hidden: 16}"]
MODELS = ("foundation", "trees", "dcnv2")


def run(app, *arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def out(tiny_teacher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    options = ["--out", folder, "--seeds", 2, "--threads", 1, *FAST]
    (folder / "stdout").write_text("\n".join(run(quality.app, tiny_teacher.path, *options)))
    return folder


@pytest.fixture(scope="module")
def found(out):
    return json.loads((out / "stdout").read_text().splitlines()[-1])


def test_every_model_is_judged_by_both_protocols_on_every_objective_and_surface(found, out):
    assert set(found) == {PROGRESSIVE, FROZEN}
    for objectives in found.values():
        assert set(objectives) == {"click", "long_view", "conversion"}
        assert set(objectives["click"]) == {"all", "feed", "search", "related"}
        assert set(objectives["conversion"]) == {"all", "search", "related"}
        for part in objectives["click"].values():
            assert set(part["models"]) == set(MODELS)
            assert set(part["leads"]) == {"trees", "dcnv2"}
    assert json.loads((out / "quality.json").read_text()) == found
    assert "| click | search |" in (out / "quality.md").read_text()


def test_figures_are_those_of_the_kept_predictions(found, out):
    for protocol in (PROGRESSIVE, FROZEN):
        values = []
        for seed in (0, 1):
            table = load_predictions(out / "foundation" / f"seed-{seed}" / f"{protocol}.parquet").scored("click")
            values.append(auc(table.labels["click"], table.probabilities["click"]))
        assert found[protocol]["click"]["all"]["models"]["foundation"]["auc"]["mean"] == pytest.approx(np.mean(values))


def test_trees_are_frozen_in_both_protocols_and_networks_are_not(found):
    first, second = (found[protocol]["click"]["all"]["models"] for protocol in (PROGRESSIVE, FROZEN))
    assert first["trees"] == second["trees"]
    assert first["dcnv2"] != second["dcnv2"]
    assert first["foundation"] != second["foundation"]


def test_the_second_time_nothing_is_trained(tiny_teacher, out, monkeypatch, found):
    def refuse(*arguments, **settings):
        raise AssertionError("trained again")

    for name in ("fit_trees", "run_pass", "tuned"):
        monkeypatch.setattr(quality, name, refuse)
    monkeypatch.setattr("benchmarks.foundation.train_foundation", refuse)
    options = ["--out", out, "--seeds", 2, "--threads", 1, *FAST]
    assert json.loads(run(quality.app, tiny_teacher.path, *options)[-1]) == found


def test_scores_past_the_cut_are_the_same_with_frozen_ones_beside_them(tiny_teacher, tmp_path):
    project = opened(tiny_teacher.path)
    both = score_foundation(project, Wanted(seed=3), tmp_path / "both")
    alone = score_foundation(project, Wanted(seed=3, frozen=False), tmp_path / "alone")
    assert set(alone) == {PROGRESSIVE}
    for objective in alone[PROGRESSIVE].objectives:
        one, other = (scored[PROGRESSIVE].scored(objective) for scored in (both, alone))
        assert np.array_equal(one.row_id, other.row_id)
        assert np.array_equal(one.probabilities[objective], other.probabilities[objective])
        frozen = both[FROZEN].scored(objective).probabilities[objective]
        assert not np.allclose(frozen, one.probabilities[objective])


def test_the_frozen_scores_are_those_of_gemcut_label(tiny_teacher, tmp_path):
    project = opened(tiny_teacher.path)
    frozen = score_foundation(project, Wanted(seed=0), tmp_path)[FROZEN]
    space, schema = Workspace(project.loaded), project.loaded.project
    labels = read_soft_labels(
        space.test_labels, data_fingerprint=project.store.fingerprint, schema_digest=schema.schema_digest()
    )
    logits = labels.of_rows(frozen.row_id, frozen.time).astype(np.float64)
    assert np.allclose(frozen.probabilities["click"], 1 / (1 + np.exp(-logits[:, 0])), atol=1e-6)


def test_variants_change_what_they_say():
    variant = Variant(set=("a.b=1",), only_objective=True)
    assert variant.overrides(("x", "y", "z"), "y") == ["a.b=1", "objectives.x.weight=0", "objectives.z.weight=0"]
    known = read_variants(ablation.VARIANTS)
    assert next(iter(known)) == "full"
    assert known["full"] == Variant()


def test_a_file_of_something_else_is_refused_with_every_problem(tmp_path):
    path = tmp_path / "variants.yaml"
    path.write_text("full: {}\nother: {sets: [a=1]}\nthird: 7\n")
    with pytest.raises(UserError) as caught:
        read_variants(path)
    assert len(caught.value.problems) == 2


def test_a_variant_is_compared_with_the_full_model(tiny_teacher, tmp_path):
    variants = tmp_path / "variants.yaml"
    variants.write_text(
        "full: {}\nno_match: {set: [foundation.model.match=false]}\nalone: {only_objective: true}\n"
        "there: {only_surface: true}\n"
    )
    options = ["--out", tmp_path / "out", "--objective", "click", "--surface", "search", "--variants", variants]
    options += ["--seeds", 1]
    found = json.loads(run(ablation.app, tiny_teacher.path, *options, *FAST)[-1])
    assert set(found) == {"no_match", "alone", "there"}
    project = opened(tiny_teacher.path)
    there = project.rows.surfaces[project.cut :] == project.rows.schema.surfaces.index("search")
    assert [part["num_rows"] for part in found.values()] == [len(there), len(there), there.sum()]
    for name, part in found.items():
        gap = part["models"]["full"]["auc"]["mean"] - part["models"][name]["auc"]["mean"]
        assert part["leads"][name]["auc"]["mean"] == pytest.approx(gap)
        assert gap != 0


OUT = ["--out", "none"]


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (quality.app, OUT),
        (ablation.app, [*OUT, "--objective", "click"]),
        (trees.app, []),
        (dcnv2.app, []),
        (plain_din.app, []),
    ],
)
def test_no_store_is_a_user_s_mistake_of_every_benchmark(tiny_logs, monkeypatch, capsys, app, options):
    monkeypatch.setattr("sys.argv", ["benchmark", str(tiny_logs.path), *options])
    with pytest.raises(SystemExit) as left:
        command.run(app)
    assert left.value.code == 3
    assert "gemcut prepare" in capsys.readouterr().err


def test_a_pass_that_ends_earlier_scores_its_rows_alike(tiny_teacher, tmp_path):
    whole = opened(tiny_teacher.path)
    end_us = int(whole.rows.times[(whole.cut + whole.rows.num_rows) // 2])
    part = opened(tiny_teacher.path, until=moment_of(end_us))
    assert part.end_us == end_us
    assert part.rows.num_rows == whole.rows.first_at(end_us)

    wanted = Wanted(seed=0, frozen=False)
    long, short = (
        score_foundation(project, wanted, tmp_path)[PROGRESSIVE].scored("click") for project in (whole, part)
    )

    both = np.isin(long.row_id, short.row_id)
    assert 0 < both.sum() < len(both)
    assert np.array_equal(short.row_id, long.row_id[both])
    rounding = 1e-6  # its last batch is smaller, so that matrix products sum in another order
    assert np.abs(short.probabilities["click"] - long.probabilities["click"][both]).max() < rounding
