"""A real MLflow server has every result that was logged to it, once and to the bit, whatever happened on the way."""

import math
import warnings
from dataclasses import replace
from datetime import UTC, datetime

import psutil
import pytest
from journals import Journal
from mlflow_server import PROGRAMS, MlflowServer
from publishing.sinks.conftest import VirtualHours
from publishing.sinks.mlflow_runs import (
    BEGIN,
    PATIENCE_SECONDS,
    TIMEOUT_SECONDS,
    _clean,
    client,
    evaluation,
    place,
    points,
    runs_of,
    server,
    sinks,
    start,
    until,
)
from statuses import make_status

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.delivery_thread import PAUSES
from sidecar.publishing.sinks.mlflow import MODULE, MLflow
from sidecar.publishing.sinks.sink import SinkUnavailableError

__all__ = ["_clean", "client", "place", "server", "sinks"]

pytestmark = pytest.mark.seconds


def value(number):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), lower=-1.0, upper=1.5)


def at(entries):
    """The history of these entries, each completed a second after the one before."""
    history = JournalState()
    for index, entry in enumerate(entries):
        moment = datetime.fromtimestamp(BEGIN + index, UTC).isoformat(timespec="milliseconds")
        history.apply(entry.plan)
        history.apply(replace(entry.outcome, completed_at=moment.replace("+00:00", "Z")))
    return history


def publish(delivery, history):
    delivery.update(make_status(run="mnist", state="ready", publisher=True, journal_read=True), history)


def deliver(sink, place, history):
    """Deliver a history as a daemon does that then ends; return what is still to be delivered."""
    made = start(sink, place)
    publish(made, history)
    made.close(PATIENCE_SECONDS)
    assert made.status.failing is None
    return made.status.pending


@pytest.mark.nightly
def test_the_server_is_killed_and_comes_back(server, client, sinks, place):
    """Nothing is lost, and nothing is there twice, in one run, though another node goes on and progress is lost."""
    journal = Journal()
    for index in range(6):
        journal.evaluate(f"ckpt-{index}", 10 * index, {"loss": value(math.sin(index))})
    entries = journal.history.entries
    first = start(sinks(), place)
    publish(first, at(entries[:3]))
    until(lambda: first.status is not None and first.status.pending == 0 and (place / "sinks/mlflow.json").exists())
    server.kill()
    publish(first, at(entries[:5]))
    until(lambda: first.status.failing is not None)
    assert first.status.pending == 2
    server.start()
    until(lambda: first.status.pending == 0)
    first.close(PATIENCE_SECONDS)
    assert deliver(sinks(), place, at(entries)) == 0, "another node goes on"
    (place / "sinks/mlflow.json").unlink()
    assert deliver(sinks(), place, at(entries)) == 0, "all of them, a second time"
    (run,) = runs_of(client, place)
    expected = [(10 * index, 1000 * (BEGIN + index), math.sin(index).hex()) for index in range(6)]
    assert points(client, run.info.run_id, "test/loss") == expected
    assert [bits for _, _, bits in points(client, run.info.run_id, "test/loss_lower")] == [(-1.0).hex()] * 6
    assert [bits for _, _, bits in points(client, run.info.run_id, "test/examples")] == [(1003.0).hex()] * 6
    assert (run.info.run_name, run.info.status, run.info.end_time) == ("mnist", "FINISHED", 1000 * (BEGIN + 5))


@pytest.mark.nightly
def test_the_server_is_dead_for_an_hour(server, client, sinks, place):
    """It is asked about once a minute, by one process, and has all in the end. The log says twice what happened."""
    clock, journal = VirtualHours(), Journal()
    for index in range(6):
        journal.evaluate(f"ckpt-{index}", 10 * index, {"loss": value(math.sin(index))})
    server.kill()
    delivery = start(sinks(), place, clock, PAUSES)
    publish(delivery, at(journal.history.entries))
    until(lambda: clock.seconds > 3600)
    children = psutil.Process().children(recursive=True)
    assert sum(MODULE in " ".join(child.cmdline()) for child in children) <= 1
    assert delivery.status.pending == 6
    server.start()
    until(lambda: delivery.has_delivered)
    assert delivery.log.names()[-1] == "sink_recovered"
    assert len(delivery.log.names()) <= 5  # not one for each try; a server that starts has reasons of its own
    delivery.close(PATIENCE_SECONDS)
    (run,) = runs_of(client, place)
    expected = [(10 * index, 1000 * (BEGIN + index), math.sin(index).hex()) for index in range(6)]
    assert points(client, run.info.run_id, "test/loss") == expected


def test_odd_numbers_and_names(client, sinks, place):
    """MLflow shows NaN as it is, and the largest double for infinity. No name is refused, and no two become one."""
    numbers = [math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 2**-0.5]
    names = [
        "odd\nname",
        "odd\tname",
        "x" * 500,
        "x" * 501,
        "../../up",
        "<script>",
        "Ω",
        "a//b",
        "\udc80",
        "recall/a cat",
    ]
    journal, sink = Journal(), sinks()
    for step, number in enumerate(numbers):
        journal.plan(f"ckpt-{step}", step=step)
        closed = journal.succeed(dict.fromkeys(["loss", *names], value(number)), eval_sets=("test", "../a/b"))
        sink.write(evaluation(closed, step))
        sink.write(evaluation(closed, step))
    (run,) = runs_of(client, place)
    largest = 1.7976931348623157e308
    expected = [math.nan, largest, -largest, *numbers[3:]]
    found = points(client, run.info.run_id, "test/loss")
    assert [bits for _, _, bits in found] == [number.hex() for number in expected]
    assert len(run.data.metrics) == 2 * 3 * (1 + len(names)) + 2
    assert all(len(client.get_metric_history(run.info.run_id, name)) == 6 for name in run.data.metrics)


def test_the_run_of_training(client, sinks, place):
    """Its own name, status and other series stay as they are."""
    run = client.create_run("0", run_name="train").info.run_id
    client.log_metric(run, "loss", 0.5, timestamp=1000 * BEGIN, step=1)
    sinks(MLFLOW_RUN_ID=run).write(evaluation(Journal().evaluate("ckpt-1", 100)))
    found = client.get_run(run)
    assert (found.info.run_name, found.info.status) == ("train", "RUNNING")
    assert found.data.metrics == {
        "loss": 0.5,
        "test/accuracy": 0.97,
        "test/accuracy_lower": 0.95,
        "test/accuracy_upper": 0.98,
        "test/examples": 1003.0,
    }
    assert runs_of(client, place) == []


@pytest.mark.nightly
def test_experiments(client, sinks, monkeypatch):
    """One that is named is created, as MLflow does it for training; one whose id is wrong is waited for."""
    first = evaluation(Journal().evaluate("ckpt-1", 100))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits of all kinds")
    sinks(MLFLOW_EXPERIMENT_NAME="digits of all kinds").write(first)
    experiment = client.get_experiment_by_name("digits of all kinds")
    assert len(client.search_runs([experiment.experiment_id])) == 1
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "4711")
    with pytest.raises(SinkUnavailableError, match="4711"):
        sinks(MLFLOW_EXPERIMENT_ID="4711").write(first)


def test_a_run_that_was_deleted(client, sinks, place):
    """A sentence says so; once it is restored, the results that waited are there. Without the record, a new run is."""
    sink, journal = sinks(), Journal()
    sink.write(evaluation(journal.evaluate("ckpt-1", 100)))
    (run,) = runs_of(client, place)
    client.delete_run(run.info.run_id)
    second = evaluation(journal.evaluate("ckpt-2", 200), 1)
    with pytest.raises(SinkUnavailableError, match=run.info.run_id) as raised:
        sink.write(second)
    (record,) = (place / "sinks").glob("mlflow-*.json")
    assert str(record) in str(raised.value)
    client.restore_run(run.info.run_id)
    sink.write(second)
    assert [step for step, _, _ in points(client, run.info.run_id, "test/accuracy")] == [100, 200]
    client.delete_run(run.info.run_id)
    record.unlink()
    sink.write(second)
    (new,) = runs_of(client, place)
    assert new.info.run_id != run.info.run_id
    with pytest.raises(SinkUnavailableError, match="MLFLOW_RUN_ID"):
        sinks(MLFLOW_RUN_ID="0" * 32).write(second)


@pytest.mark.nightly
def test_a_server_that_stores_files(needs, tmp_path, place):
    """It appends a point as often as it comes, so it is asked: after a start, after a failure, without progress."""
    with MlflowServer(needs("mlflow", PROGRAMS), tmp_path, files=True) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        client, journal = MlflowClient(server.uri), Journal()
        for index in range(4):
            journal.evaluate(f"ckpt-{index}", 10 * index, {"loss": value(math.sin(index))})
        made = [MLflow(server.uri, PosixStorage(place), place, TIMEOUT_SECONDS, environ={}) for _ in range(3)]
        assert deliver(made[0], place, at(journal.history.entries[:2])) == 0
        run = made[0].logged_run()
        client.log_batch(run, [Metric("test/loss_lower", -1.0, 1000 * (BEGIN + 2), 20)])  # begun
        assert deliver(made[1], place, at(journal.history.entries[:3])) == 0
        (place / "sinks/mlflow.json").unlink()
        assert deliver(made[2], place, at(journal.history.entries)) == 0
        for name in ("test/loss", "test/loss_lower", "test/loss_upper", "test/examples"):
            assert [step for step, _, _ in points(client, run, name)] == [0, 10, 20, 30]
        for each in made:
            each.process.close()


@pytest.mark.nightly
def test_two_nodes_begin_at_once(client, sinks, place):
    """The first record decides: the run that the other one created is deleted again."""

    class Late(PosixStorage):
        """Storage of a node that is about to record its run when another node records one."""

        def create(self, path, data):
            (mine,) = runs_of(client, place)
            tag = mine.data.tags["sidecar.run_id"]
            winners.append(client.create_run("0", tags={"sidecar.run_id": tag}).info.run_id)
            super().create(path, data.replace(mine.info.run_id.encode(), winners[-1].encode()))
            super().create(path, data)

    winners, sink = [], sinks(Late(place))
    sink.write(evaluation(Journal().evaluate("ckpt-1", 100)))
    (run,) = runs_of(client, place)
    assert [run.info.run_id] == winners
    assert len(points(client, run.info.run_id, "test/accuracy")) == 1
