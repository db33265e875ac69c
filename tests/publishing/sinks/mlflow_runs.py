"""A real MLflow server, sinks that log to it, and its own client, which reads what was logged."""

import time
import warnings

import pytest
from fakes import ListLog
from mlflow_server import PROGRAMS, MlflowServer
from publishing.sinks.conftest import SHORT_PAUSES, without_variables

from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.mlflow import MLflow
from sidecar.publishing.sinks.sink import Evaluation

PATIENCE_SECONDS = 600.0

TIMEOUT_SECONDS = 20.0

BEGIN = 1769860800


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    without_variables(monkeypatch, "MLFLOW_")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def server(needs, tmp_path_factory):
    with MlflowServer(needs("mlflow", PROGRAMS), tmp_path_factory.mktemp("mlflow")) as made:
        yield made


@pytest.fixture
def client(server, monkeypatch):
    """Return MLflow's own client of the server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations, at import
        from mlflow.tracking import MlflowClient
    return MlflowClient(server.uri)


@pytest.fixture
def place(tmp_path):
    """The state directory of a new run."""
    open_run(PosixStorage(tmp_path / "state"), 0.0)
    return tmp_path / "state"


@pytest.fixture
def sinks(server, place):
    """Make sinks as daemons of several nodes do: `sinks(MLFLOW_RUN_ID=…)`."""
    made = []

    def make(storage=None, **environ):
        made.append(MLflow(server.uri, storage or PosixStorage(place), place, TIMEOUT_SECONDS, environ=environ))
        return made[-1]

    yield make
    for each in made:
        each.process.close()


def start(sink, place, changed=None, pauses=SHORT_PAUSES):
    """Deliver to a sink, as a daemon does; return the delivery."""
    made = Delivery(sink, PosixStorage(place), "mnist", ListLog(), changed=changed, pauses=pauses)
    made.start()
    return made


def evaluation(closed, seconds=0):
    return Evaluation(
        run="mnist",
        plan=closed.plan.plan,
        checkpoint=closed.plan.checkpoint,
        result=closed.outcome.result,
        milliseconds=1000 * (BEGIN + seconds),
    )


def until(condition):
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def runs_of(client, place):
    """The active runs of MLflow for the run in a state directory."""
    (run,) = [line for line in (place / "run.json").read_text().split('"') if len(line) == 32][:1]
    return client.search_runs(["0"], f"tags.`sidecar.run_id` = '{run}'")


def points(client, run, name):
    """Steps, milliseconds and bits of a series, in the order of its steps."""
    found = client.get_metric_history(run, name)
    return [(each.step, each.timestamp, each.value.hex()) for each in sorted(found, key=lambda each: each.step)]
