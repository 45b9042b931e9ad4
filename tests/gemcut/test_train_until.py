"""`gemcut train --until`: learning on after the cut, and what stays of the cut."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from eval.mlflow_sync import SPOOL_FILE, read_entries
from foundation.data.store import read_manifest
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import list_checkpoints
from tests.foundation.training.stopping import train_and_stop


def labels_of(project, folder):
    space = project.space()
    stamps = {
        "data_fingerprint": read_manifest(space.store).fingerprint,
        "schema_digest": space.loaded.project.schema_digest(),
    }
    return read_soft_labels(folder(space), **stamps)


def test_a_teacher_that_has_learned_on_still_labels_as_it_was_at_the_cut(tiny_teacher, tmp_path, gemcut):
    project = tiny_teacher.copy(tmp_path / "tiny")
    before = labels_of(project, lambda space: space.test_labels)
    code, out, _ = gemcut("train", "-p", project.path, "--until", "end", "--json")
    assert code in (0, None)
    told = json.loads(out.splitlines()[-1])
    manifest = read_manifest(project.space().store)
    assert json.dumps(told).count('"progressive_from_cut"') == 1
    later = labels_of(project, lambda space: space.foundation / "soft_labels_from_cut")
    earlier = labels_of(project, lambda space: space.progressive_labels)
    assert len(later.row_ids) + len(earlier.row_ids) == manifest.num_rows
    assert later.row_ids.tolist() == before.row_ids.tolist()
    assert np.nanmax(np.abs(later.logits - before.logits)) > 0

    assert gemcut("train", "-p", project.path)[0] in (0, None)
    assert gemcut("label", "-p", project.path)[0] in (0, None)
    after = labels_of(project, lambda space: space.test_labels)
    np.testing.assert_array_equal(after.logits, before.logits)
    assert after.manifest.teacher == before.manifest.teacher


def test_a_training_that_was_begun_to_go_further_says_so_and_where_its_figures_end(tiny_teacher, tmp_path, gemcut):
    project = tiny_teacher.copy(tmp_path / "tiny")
    space = project.space("foundation.training.checkpoint_every=1")
    end_us = read_manifest(space.store).last_time + 1
    train_and_stop(space.foundation_job(end_us), 1)
    code, out, said = gemcut("train", "-p", project.path, "--json")
    assert code in (0, None)
    end = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end_us)).replace(tzinfo=None).isoformat()
    assert f"this training was begun to go to {end}; going on to that" in said
    assert "to 2024-02-18T00:00:00; each row" in said
    assert f"from there to {end}, still learning" in said
    told = json.loads(out.splitlines()[-1])
    assert told["until"] == end
    assert told["progressive_from_cut"]["click"]["num_rows"] > 0


def test_where_nothing_is_left_to_learn_the_figures_are_of_the_finished_pass_and_there_is_no_speed(
    tiny_teacher, tmp_path, gemcut
):
    project = tiny_teacher.copy(tmp_path / "tiny")
    folder = project.space().foundation
    report = (folder / "report.json").read_bytes()
    code, out, said = gemcut("train", "-p", project.path, "--json")
    assert code in (0, None)
    assert "nothing was left to learn; trained to 2024-02-18T00:00:00" in said
    assert "rows/s" not in said
    told = json.loads(out.splitlines()[-1])
    assert told["efficiency"] is None
    assert told["progressive"] == json.loads(report)["progressive"]
    assert (folder / "report.json").read_bytes() == report
    logged = [entry["values"] for _, entry in read_entries(folder / SPOOL_FILE) if entry["kind"] == "metrics"]
    assert sum("rows_per_s" in values for values in logged) == 1
    assert sum("progressive/ne/click" in values for values in logged) == 2


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("yesterday", ("a time, or `end`", "`yesterday`")),
        ("2024-02-17", ("at or after `split.test_from`, 2024-02-18", "2024-02-17")),
    ],
)
def test_a_time_that_is_none_or_before_the_cut_is_refused(tiny_teacher, gemcut, until, words):
    code, _, said = gemcut("train", "-p", tiny_teacher.path, "--until", until)
    assert code == 3
    flat = " ".join(said.split())
    assert all(word in flat for word in words), flat


def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_is_used(tiny_teacher, tmp_path, gemcut):
    project = tiny_teacher.copy(tmp_path / "tiny")
    space = project.space("foundation.training.checkpoint_every=1")
    newest = list_checkpoints(space.foundation / "checkpoints")[-1]
    labels = labels_of(project, lambda space: space.progressive_labels)
    shutil.rmtree(newest)
    train_and_stop(space.foundation_job(space.until_us), 3)
    kept, damaged = list_checkpoints(space.foundation / "checkpoints")[-2:]
    (damaged / "state.json").write_text("{}")

    code, _, said = gemcut("train", "-p", project.path)

    assert code in (0, None)
    assert f"damaged checkpoint: {damaged / 'state.json'}" in said
    assert f"training goes on from {kept.name}" in said
    assert [path.name for path in list_checkpoints(space.foundation / "checkpoints")][-1] == newest.name
    np.testing.assert_array_equal(labels_of(project, lambda space: space.progressive_labels).logits, labels.logits)


def test_a_training_that_was_stopped_tells_where_its_time_went(tiny_teacher, tmp_path, gemcut):
    project = tiny_teacher.copy(tmp_path / "tiny")
    space = project.space("foundation.training.checkpoint_every=1")
    shutil.rmtree(space.foundation)
    train_and_stop(space.foundation_job(space.until_us), 3)

    code, out, said = gemcut("train", "-p", project.path, "--json")

    assert code in (0, None)
    document = json.loads(out.splitlines()[-1])
    told, ranks = document["goodput"], document["ranks"]
    assert told["num_attempts"] == 2
    assert 0 < told["goodput"] < told["ettr"] < 1
    assert f"goodput {told['goodput']:.1%}" in said
    assert "in 2 attempts" in said
    assert "the last start: imports" in said
    logged = [entry.get("values", {}) for _, entry in read_entries(space.foundation / SPOOL_FILE)]
    assert sum("goodput/goodput" in values and "goodput/startup/imports_s" in values for values in logged) == 1
    assert ranks["own_s"][0] > 0
    assert ranks["slowest"] is None
    assert f"peak memory {ranks['peak_memory_bytes'][0] / 2**30:.2f} GiB" in said
    assert f"E2E MFU x ETTR {document['efficiency']['e2e_mfu'] * told['ettr']:.1%}" in said
    assert sum("ranks/rows_per_s/0" in values and "ranks/peak_memory_bytes/0" in values for values in logged) == 1
