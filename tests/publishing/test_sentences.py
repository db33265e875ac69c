"""Tell people in sentences what programs read as fields."""

import io
import re

import pytest
import structlog

from sidecar.protocol.records import Value
from sidecar.publishing import log


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def terminal():
    """Log for people, without colors; what was said, without the time of day."""
    stream = io.StringIO()
    log.configure("console", stream)
    return lambda: [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]


def test_people_read_sentences(terminal, journal):
    """A checkpoint, its numbers, which of them are the best so far; no plans, phases or addresses."""
    logger = structlog.get_logger().bind(run="mnist", node="n")
    log.entry_logged(logger, journal.plan(members=2))
    closed = journal.succeed(
        {"accuracy": Value(value=0.971234, hex="0x1p0", goal="max"), "loss": Value(value=None, hex="nan")}
    )
    log.entry_logged(logger, closed, journal.history.totals.best)
    assert terminal() == [
        "ckpt-5 (step 500): evaluating with 2 workers on worker-0, worker-1",
        "ckpt-5 (step 500): accuracy 0.97123 (best)  loss nan  [1003 examples, 1.5 s]",
    ]


def test_an_unknown_number_of_examples_is_left_out(terminal, journal):
    """A function of the task measured, and did not return it."""
    journal.plan()
    log.entry_logged(structlog.get_logger(), journal.succeed({"acc": Value(value=0.5, hex="0x1p-1")}, examples=0))
    assert terminal() == ["ckpt-5 (step 500): acc 0.5  [1.5 s]"]


def test_what_ended_worse_is_not_called_the_best(terminal, journal):
    """The best one stands in the journal."""
    journal.evaluate("ckpt-1", 100, {"accuracy": Value(value=0.9, hex="0x1p0", goal="max")})
    journal.plan("ckpt-2", step=200)
    closed = journal.succeed({"accuracy": Value(value=0.5, hex="0x1p0", goal="max")}, lag=2.25)
    log.entry_logged(structlog.get_logger(), closed, journal.history.totals.best)
    assert terminal() == ["ckpt-2 (step 200): accuracy 0.5  [1003 examples, 1.5 s, lag 2.2 s]"]


def test_a_failure_names_the_log_of_the_worker(terminal, journal):
    """A traceback keeps its lines, indented; it cannot forge a line or steer the terminal."""
    journal.plan()
    closed = journal.fail("task_error", "Traceback:\n12:00:00 forged\x1b[2J")
    log.entry_logged(structlog.get_logger(), closed, log_of=lambda _: "/tmp/logs/n.a.1.log")
    assert terminal() == [
        "warning: ckpt-5 (step 500): attempt 1 failed on worker-1: task_error: Traceback:",
        "    12:00:00 forged\\x1b[2J",
        "  log of the worker process: /tmp/logs/n.a.1.log",
    ]


def test_the_end_of_a_daemon_is_not_told_as_a_failure(terminal, journal):
    """The first signal says how long it may take; what could not end in time is evaluated later."""
    structlog.get_logger().info("draining", signal="SIGINT", evaluating=True, drain_seconds=25.0, hint="")
    journal.plan()
    closed = journal.fail("drained", "the daemon was stopped before the evaluation ended")
    log.entry_logged(structlog.get_logger(), closed, log_of=lambda _: "/tmp/logs/n.a.1.log")
    first, last = terminal()
    assert "ending after this evaluation, in 25 s at the latest; Ctrl-C again ends at once" in first
    assert "ckpt-5 (step 500): not evaluated yet: the daemon was stopped" in last
    assert "failed" not in last


def test_every_event_of_the_program_has_a_sentence_that_its_fields_fill():
    """A field that was renamed, or a new event, would be shown in the engineers' way without anybody noticing."""
    import ast
    from pathlib import Path

    import sidecar
    from sidecar.publishing.sentences import _SENTENCES

    logged = set()
    for path in Path(sidecar.__file__).parent.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if re.search(r"\b(info|warning|say|_warn)\(", source) else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="info" | "warning" | "say" | "_warn") | ast.Name(id="say"),
                    args=[ast.Constant(value=str(name)), *_],
                ) if re.fullmatch(r"[a-z]+(_[a-z]+)*", name):
                    logged.add(name)
    logged.add("checkpoint_settled")
    assert logged
    assert logged - _SENTENCES.keys() == set()
    assert _SENTENCES.keys() - logged == set()
