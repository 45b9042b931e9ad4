"""A real MLflow server that dies while two ranks train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eval.mlflow_server import free_port, server

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

BREAK_RANK = Path(__file__).with_name("break_rank.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")


def test_training_goes_on_without_its_tracking_server_and_all_arrives_later_in_one_run(tiny_teacher, tmp_path):
    from mlflow import MlflowClient

    project = tiny_teacher.copy(tmp_path / "tiny", without=["foundation", "soft_labels", "mlflow.db", "mlartifacts"])
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    named = ["-p", str(project.path), "--set", f"tracking.uri={uri}"]
    environment = os.environ | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    with server(tmp_path, port) as group:
        command = [TORCHRUN, "--standalone", "--nproc-per-node", "2", BREAK_RANK, str(group), "0", "5", "train", *named]
        trained = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr.count("does not take tracking data; it is kept in") == 1
    with server(tmp_path, port):
        for _ in range(2):  # the second time there is nothing left to send
            subprocess.run([sys.executable, "-m", "gemcut", "sync", *named], check=True, env=environment)
        client = MlflowClient(uri, uri)
        (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["goodput/num_attempts"] == 1
    assert "progressive/ne/click" in run.data.metrics
