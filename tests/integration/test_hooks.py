"""A real daemon calls hooks, and tells a training loop to stop, while one hook hangs."""

import json
import shlex
import signal
import sys
import time

import pytest
from numpy_trainer import NUMPY
from receivers import receiver

from sidecar.early_stop import should_stop

STEPS = range(10, 400, 10)
PATIENCE = 3
END_SECONDS = 3 + 10  # `sink_timeout_seconds` of the test, and a generous time for all else


@pytest.fixture
def server():
    with receiver() as made:
        yield made


def appends(path):
    """A command that appends the event to a file, as one line."""
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
    return [sys.executable, "-I", "-S", "-c", code, str(path)]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.nightly
def test_training_is_told_to_stop_and_hooks_are_called(sidecar, numpy_trainer, server, place, tmp_path, alive, until):
    """With one that hangs: the others get each event once and in order, also over a restart, and the run's end."""
    best, ends = tmp_path / "best", tmp_path / "ends"
    hooks = {
        "result": {"url": server.url, "timeout_seconds": 5},
        "best": appends(best),
        "failure": {"command": ["sleep", "600"], "timeout_seconds": 600},
        "nan": {"command": ["false"]},
        "end": appends(ends),
    }
    settings = NUMPY | {
        "SIDECAR_HOOKS": json.dumps(hooks),
        "SIDECAR_BEST_METRIC": "test/loss",
        "SIDECAR_EARLY_STOP_PATIENCE": str(PATIENCE),
        "SIDECAR_SINK_TIMEOUT_SECONDS": "3",  # each end waits so long for the hook that hangs
    }
    daemon = sidecar.run(place, task="numpy_plain.py", **settings)
    (place / "model-5.npz").write_bytes(b"not a model")  # it fails, and the hook of failures hangs
    losses = []
    for step in STEPS:
        (saved,) = numpy_trainer.save(place, step)
        losses.append(saved["loss"])
        daemon.evaluated(saved)
        if len(losses) == 3:
            daemon.until(lambda: len(server.requests) >= 3, "the results to be posted")
            left = daemon.children()
            assert daemon.end(signal.SIGKILL).code == -signal.SIGKILL
            until(lambda left=left: not alive(left), "the end of its workers and of the hook that hangs")
            daemon = sidecar.run(place, task="numpy_plain.py", **settings)
        if daemon.samples("sidecar_early_stop").get(()) == 1.0 or should_stop(place):
            break
    daemon.until(lambda: should_stop(place), "the signal to be written")
    found = should_stop(place)
    expected, since = min(losses), len(losses) - 1 - losses.index(min(losses))
    assert since >= PATIENCE
    assert found.patience == PATIENCE
    assert found.metric == "test/loss"
    assert abs(found.best - expected) < 1e-9
    assert found.best_step == STEPS[losses.index(expected)]
    (line,) = daemon.logged("early_stop_signalled")
    assert found.reason.startswith(line["reason"])
    daemon.until(lambda: len(server.requests) >= len(losses), "all results to be posted")
    began = time.monotonic()
    assert daemon.end(signal.SIGTERM).code == 0
    assert time.monotonic() - began < END_SECONDS  # nothing is evaluated, and one hook hangs
    last = sidecar.run(place, "--once", task="numpy_plain.py", **settings)
    last.wait()
    again = sidecar.run(place, "--once", task="numpy_plain.py", **settings)
    again.wait()
    ids = list(dict.fromkeys(request.headers["webhook-id"] for request in server.requests))
    posted = {request.headers["webhook-id"]: json.loads(request.body) for request in server.requests}
    rows = last.successes()
    assert [posted[each]["metrics"]["test"]["loss"]["hex"] for each in ids] == [
        row["metrics"]["test"]["loss"]["hex"] for row in rows
    ]
    assert len(server.requests) <= len(ids) + 1  # the newest one may come twice after SIGKILL
    records = [loss for index, loss in enumerate(losses) if loss < min(losses[:index], default=float("inf"))]
    called = {each["id"]: each for each in lines(best)}
    assert [each["best"]["checkpoint"]["step"] for each in called.values()] == [
        STEPS[losses.index(record)] for record in records
    ]
    (end,) = lines(ends)
    assert end["checkpoints"]["evaluated"] == len(losses)


def test_a_publisher_is_killed_in_the_middle_of_a_delivery(sidecar, numpy_trainer, place, tmp_path, alive, until):
    """The event comes again with the same id, then the others; another daemon goes on under another name."""
    got, held = tmp_path / "got", tmp_path / "held"
    code = f"cat >> {shlex.quote(str(got))}; echo >> {shlex.quote(str(got))}; "
    code += f"test -e {shlex.quote(str(held))} || exec sleep 600"
    settings = NUMPY | {"SIDECAR_HOOKS": json.dumps({"result": ["sh", "-c", code]})}
    daemon = sidecar.run(place, "--node", "worker-0", task="numpy_plain.py", **settings)
    daemon.evaluated(*numpy_trainer.save(place, 10, 20))
    daemon.until(lambda: len(lines(got)) == 1, "the first event to be delivered")
    left = daemon.children()
    daemon.end(signal.SIGKILL)
    until(lambda: not alive(left), "the end of the hook")
    held.touch()
    other = sidecar.run(place, "--node", "worker-1", task="numpy_plain.py", **settings)
    other.until(lambda: len(lines(got)) == 3, "the events to be delivered")
    first, second, third = lines(got)
    assert first == second
    assert [first["checkpoint"]["step"], third["checkpoint"]["step"]] == [10, 20]
    assert other.end(signal.SIGTERM).code == 0


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ('{"best": "/nonexistent/program"}', "/nonexistent/program"),
        ('{"best": {"url": "http://a/", "secret_file": "/nonexistent/key"}}', "/nonexistent/key"),
        ('{"sometimes": "true"}', "sometimes"),
    ],
)
def test_a_hook_that_cannot_be_called_is_one_sentence(sidecar, place, hooks, said):
    """At the start, instead of at the first event."""
    done = sidecar.command("run", place, "--task", "a.py:task", "--role", "chief", SIDECAR_HOOKS=hooks)
    assert done.code == 2
    assert said in done.sentence


@pytest.mark.nightly
def test_the_run_ends_once_on_two_nodes(sidecar, numpy_trainer, place, tmp_path):
    """The publisher ends first and its hook takes a while, in which the other node ends, too, and calls nobody."""
    ends = tmp_path / "ends"
    code = f"cat >> {shlex.quote(str(ends))}; echo >> {shlex.quote(str(ends))}; sleep 4"
    settings = NUMPY | {"SIDECAR_HOOKS": json.dumps({"end": ["sh", "-c", code]})}
    numpy_trainer.save(place, 10, 20)
    nodes = [
        sidecar.run(place, "--node", f"worker-{n}", "--stop-idle-seconds", idle, task="numpy_plain.py", **settings)
        for n, idle in enumerate(("4", "6"))
    ]
    assert [node.wait().code for node in nodes] == [0, 0]
    (end,) = lines(ends)
    assert end["checkpoints"]["evaluated"] == 2
    assert "idle" in end["reason"]
