"""A daemon with a sink that another author wrote, and with a real MLflow server."""

import json
import signal
import time
import warnings
from pathlib import Path

import pytest
from installed_sinks import install
from mlflow_server import PROGRAMS, MlflowServer
from numpy_trainer import NUMPY

HANGING = """
import threading
from concurrent.futures import ThreadPoolExecutor

class Sink:
    name = "acme"

    def write(self, evaluation):
        pool = ThreadPoolExecutor(1)
        pool.submit(threading.Event().wait)
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        threading.Event().wait()

def make(options, run, timeout_seconds):
    return Sink()
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """The settings of a daemon whose environment has the sink above."""
    install(tmp_path / "site", {"acme": "acme_sinks:make"}, HANGING, monkeypatch)
    return {
        "PYTHONPATH": str(tmp_path / "site"),
        "SIDECAR_SINKS": '{"acme": {}}',
        "SIDECAR_SINK_TIMEOUT_SECONDS": "1",
    }


def test_a_sink_that_hangs_and_leaves_threads(sidecar, numpy_trainer, place, acme):
    """Checkpoints are evaluated, the metrics are served, and the daemon ends."""
    daemon = sidecar.run(place, task="numpy_plain.py", **NUMPY, **acme)
    daemon.evaluated(*numpy_trainer.save(place, 10, 20))
    daemon.until(lambda: list(daemon.samples("sidecar_sink_pending_results").values()) != [0], "results to wait")
    began = time.monotonic()
    assert daemon.end(signal.SIGTERM).code == 0
    assert time.monotonic() - began < 30


def test_a_sink_that_cannot_be_made(sidecar, place, tasks):
    """No daemon is started that would lose results without a word; `sidecar check` says why, too."""
    place.mkdir(exist_ok=True)
    asked = NUMPY | {"SIDECAR_SINKS": '{"nobody": {"token": "s3cret"}}'}
    words = (place, "--task", f"{tasks / 'numpy_plain.py'}:task")
    done = sidecar.command("run", *words, **asked)
    assert done.code == 2
    assert "[sinks.nobody]" in done.sentence
    checked = sidecar.command("check", *words, **asked)
    assert checked.code == 1
    (line,) = [line for line in checked.out.splitlines() if line.startswith("FAIL sinks")]
    assert "[sinks.nobody]" in line
    assert "s3cret" not in done.err + checked.out + checked.err


@pytest.mark.nightly
def test_a_daemon_logs_to_mlflow(sidecar, numpy_trainer, place, needs, tmp_path):
    """The numbers there are those of the history, to the bit; also the last ones of a daemon that ends by itself."""
    with MlflowServer(needs("mlflow", PROGRAMS), tmp_path) as server:
        settings = NUMPY | {"SIDECAR_MLFLOW_TRACKING_URI": server.uri, "SIDECAR_SINK_TIMEOUT_SECONDS": "30"}
        saved = numpy_trainer.save(place, 10, 20)
        daemon = sidecar.run(place, task="numpy_plain.py", **settings)
        daemon.evaluated(*saved)
        daemon.until(lambda: list(daemon.samples("sidecar_sink_pending_results").values()) == [0], "two results")
        assert daemon.end(signal.SIGTERM).code == 0
        numpy_trainer.save(place, 30)
        exports = place / ".sidecar" / place.name / "exports"
        (exports / "model-20.npz@0123456789ab").mkdir(parents=True)
        (exports / "model-20.npz@0123456789ab/manifest.json").write_text("{}")
        (exports / "best").symlink_to("model-20.npz@0123456789ab")
        last = sidecar.run(place, "--once", task="numpy_plain.py", SIDECAR_MLFLOW_LOG_BEST="true", **settings)
        assert last.wait().code == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow.tracking import MlflowClient
        client = MlflowClient(server.uri)
        (record,) = (place / ".sidecar" / place.name / "sinks").glob("mlflow-*.json")
        run = json.loads(record.read_text())["mlflow_run"]
        for name, metric in last.successes()[0]["metrics"]["test"].items():
            found = client.get_metric_history(run, f"test/{name}")
            shown = {point.step: point.value.hex() for point in found}
            assert shown == {row["step"]: row["metrics"]["test"][name]["hex"] for row in last.successes()}, metric
            assert len(found) == 3
        (uploaded,) = last.log("best_uploaded")
        assert uploaded["mlflow_run"] == run
        found = client.list_artifacts(run, "best/model-20.npz@0123456789ab")
        assert [Path(artifact.path).name for artifact in found] == ["manifest.json"]
