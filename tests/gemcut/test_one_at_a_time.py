"""Who trains in a folder has it alone."""

import pytest

from eval.locks import only_one
from gemcut import workspace


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("command", "name"),
    [(("train", "--fresh"), "foundation"), (("distill", "--placement", "related_click"), "related_click")],
)
def test_a_second_training_beside_a_living_one_is_refused_and_touches_nothing(
    command, name, gemcut, tiny_teacher, tmp_path, monkeypatch
):
    monkeypatch.setattr(workspace, "LAST_BREATH_S", 0.1)
    project = tiny_teacher.copy(tmp_path / "tiny")
    before = contents(project.work)
    with only_one(project.work / "locks" / name, what="this test"):
        code, _, text = gemcut(*command, "-p", project.path)
    assert code == 3
    assert f"training of {name}" in text
    assert "another one at work" in text
    now = contents(project.work)
    assert {path: now.get(path) for path in before} == before
    assert {path.name for path in now.keys() - before.keys() if "store.cache" not in path.parts} <= {name}, "its lock"
