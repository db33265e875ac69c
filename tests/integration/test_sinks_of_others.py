"""A daemon with a sink that another author wrote, and with a real MLflow server."""

import json
import signal
import time
import warnings

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


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"SIDECAR_SINKS": '{"nobody": {}}'}, "[sinks.nobody]"),
        ({"SIDECAR_MLFLOW": "true"}, "MLFLOW_TRACKING_URI"),
        ({"SIDECAR_MLFLOW": "true", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}, "sqlite"),
    ],
)
def test_a_sink_that_cannot_be_made(sidecar, place, tasks, settings, shown):
    """No daemon is started that would lose results without a word; `sidecar check` says why, too."""
    place.mkdir(exist_ok=True)
    task = f"{tasks / 'numpy_plain.py'}:task"
    done = sidecar.command("run", place, "--task", task, **NUMPY, **settings)
    assert done.code == 2
    assert shown in done.sentence
    checked = sidecar.command("check", place, "--task", task, **NUMPY, **settings)
    assert checked.code == 1
    (line,) = [line for line in checked.out.splitlines() if line.startswith("FAIL sinks")]
    assert shown in line


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SIDECAR_SINKS", "{"),
        ("SIDECAR_SINKS", "[]"),
        ("SIDECAR_SINKS", '{"mlflow": {}}'),
        ("SIDECAR_SINKS", '{"../x": {}}'),
        ("SIDECAR_SINKS", '{"acme": 5}'),
        ("SIDECAR_MLFLOW_TRACKING_URI", "mlflow:5000"),
        ("SIDECAR_MLFLOW_TRACKING_URI", "http://me:secret@/"),
        ("SIDECAR_MLFLOW", "http://mlflow"),
    ],
)
def test_wrong_settings_are_one_sentence(sidecar, place, variable, value):
    """What was written, and what to write."""
    done = sidecar.command("status", place, **{variable: value})
    assert done.code == 2
    assert variable in done.sentence
    assert "secret" not in done.sentence


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
        last = sidecar.run(place, "--once", task="numpy_plain.py", **settings)
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
