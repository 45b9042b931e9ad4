"""`gemcut sync`: what tracking kept arrives, once, and a server that does not answer is told."""

import json

import pytest

from eval.tracking import SPOOL_FILE
from gemcut.commands.sync import sync
from gemcut.console import Screen
from serving.errors import UserError


def test_what_is_kept_is_kept_until_a_server_answers_and_sent_once(tiny_teacher, tmp_path):
    from mlflow import MlflowClient

    project = tiny_teacher.copy(tmp_path / "tiny", without=["mlflow.db"])
    lines = (project.work / "foundation" / SPOOL_FILE).read_bytes().splitlines()
    with pytest.raises(UserError) as caught:
        sync(project.load("tracking.uri=http://127.0.0.1:9"), Screen())
    (problem,) = caught.value.problems
    assert "http://127.0.0.1:9" in problem.where
    assert "gemcut sync" in problem.remedy
    sent = sync(project.load(), Screen())
    assert (sent["num_runs"], sent["num_entries"]) == (1, len(lines))
    assert sync(project.load(), Screen())["num_entries"] == 0
    client = MlflowClient(sent["uri"], sent["uri"])
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.data.tags["gemcut.run"] == json.loads(lines[0])["run"]


def test_without_a_tracked_run_nothing_is_sent(tiny_logs):
    assert sync(tiny_logs.load(), Screen())["num_entries"] == 0
