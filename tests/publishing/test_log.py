"""Write log events for programs and for people."""

import io
import json
import logging
import math
import re
import warnings
from datetime import datetime

import pytest
import structlog

from sidecar.protocol.records import Nonfinite, Value
from sidecar.publishing import log


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        """Return that this stream is a terminal."""
        return True


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def lines(stream):
    """Log as JSON, and read back what was logged."""
    log.configure("json", stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def about(line):
    return {key: value for key, value in line.items() if key != "timestamp"}


def test_json_lines(lines):
    """Each line is one JSON object with time in UTC, level and event; debug lines are left out."""
    structlog.get_logger().info("group_formed", workers=2)
    structlog.get_logger().debug("noise")
    (line,) = lines()
    assert about(line) == {"event": "group_formed", "level": "info", "workers": 2}
    assert datetime.fromisoformat(line["timestamp"]).utcoffset().total_seconds() == 0


def test_json_exception(lines):
    """An exception becomes data, without local variables, which may hold secrets."""
    secret = "hunter2"
    try:
        int(secret[-1] + "x")
    except ValueError:
        structlog.get_logger().exception("loop_failed")
    (line,) = lines()
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert line["exception"][0]["exc_value"].endswith("'2x'")
    assert "hunter2" not in json.dumps(line)


def test_terminal_gets_text():
    """A terminal gets text for people, anything else JSON, unless a format is named."""
    terminal, pipe, forced = Terminal(), io.StringIO(), io.StringIO()
    for stream, log_format in ((terminal, None), (pipe, None), (forced, "console")):
        log.configure(log_format, stream)
        structlog.get_logger().info("group_formed", workers=2)
    assert "{" not in terminal.getvalue()
    assert "group_formed" in terminal.getvalue()
    assert json.loads(pipe.getvalue())["event"] == "group_formed"
    assert "workers=2" in forced.getvalue()
    assert "\x1b" not in forced.getvalue()


def test_console_escapes_control_characters(stream):
    """The name of a file cannot steer the terminal or forge a line."""
    log.configure("console", stream)
    structlog.get_logger().info("checkpoint_found", checkpoint="a\x1b[2Jb\nfake")
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_console_exception(stream):
    """On the console an exception is an ordinary traceback."""
    log.configure("console", stream)
    try:
        int("seven")
    except ValueError:
        structlog.get_logger().exception("loop_failed")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "ValueError: invalid literal" in stream.getvalue()


def test_libraries_are_heard_from_warning_on(lines):
    """Show that messages of libraries through `logging`, and Python's own warnings, stand in the same lines."""
    library = logging.getLogger("watchdog.observers")
    library.info("noise")
    library.warning("queue of %d overflowed", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old style", stacklevel=1)
    first, second = lines()
    assert about(first) == {
        "event": "queue of 7 overflowed",
        "level": "warning",
        "logger": "watchdog.observers",
    }
    assert "old style" in second["event"]


def test_configured_twice(stream):
    """A second call replaces the first: no line comes twice."""
    later = io.StringIO()
    log.configure("json", stream)
    log.configure("json", later)
    logging.getLogger("library").warning("once")
    structlog.get_logger().info("moved")
    assert stream.getvalue() == ""
    assert len(later.getvalue().splitlines()) == 2


def test_a_full_disk_behind_the_log(stream):
    """A log that cannot be written is no reason to stop."""

    class Full(io.StringIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    log.configure("json", Full())
    structlog.get_logger().info("group_formed")
    logging.getLogger("library").warning("queue overflowed")
    log.configure("json", stream)
    stream.close()
    structlog.get_logger().info("group_formed")


def test_plan_opened(lines, journal):
    """An opened plan names checkpoint, attempt, workers and each node once."""
    log.entry_logged(structlog.get_logger(), journal.plan(members=2))
    (line,) = lines()
    assert about(line) == {
        "event": "plan_opened",
        "level": "info",
        "plan": 1,
        "checkpoint": "ckpt-5",
        "step": 500,
        "attempt": 1,
        "workers": 2,
        "nodes": ["worker-0", "worker-1"],
    }


def test_plan_that_only_settles_is_silent(lines, journal, settle):
    """A plan without members opens nothing; its settlements are told one by one."""
    plan = journal.plan(None, settles=[settle("ckpt-4", "skipped", reason="older")])
    log.entry_logged(structlog.get_logger(), plan)
    assert lines() == []


def test_evaluation_succeeded(lines, journal):
    """A success shows its numbers as `set.metric`, those that JSON cannot carry as text, and seconds by phase."""
    journal.plan()
    closed = journal.succeed(
        {"accuracy": Value(value=0.97, hex="0x1p0"), "loss": Value(value=None, hex=math.nan.hex())}, lag=2.25
    )
    log.entry_logged(structlog.get_logger(), closed)
    (line,) = lines()
    assert about(line) == {
        "event": "evaluation_succeeded",
        "level": "info",
        "plan": 1,
        "checkpoint": "ckpt-5",
        "step": 500,
        "workers": 2,
        "test.accuracy": 0.97,
        "test.loss": "nan",
        "examples": {"test": 1003},
        "took": 1.5,
        "lag": 2.25,
        "seconds": {"detect": 0.01, "agree": 0.02, "restore": 0.1, "evaluate": 0.6, "reduce": 0.01, "save": 0.05},
    }


def test_plan_failed(lines, journal):
    """A failed plan is a warning that names kind, node, rank and message."""
    journal.plan()
    log.entry_logged(structlog.get_logger(), journal.fail())
    (line,) = lines()
    assert about(line) == {
        "event": "plan_failed",
        "level": "warning",
        "plan": 1,
        "checkpoint": "ckpt-5",
        "step": 500,
        "attempt": 1,
        "kind": "stalled",
        "node": "worker-1",
        "rank": 1,
        "message": "no batch for 60 s",
    }


@pytest.mark.parametrize(("verdict", "level"), [("skipped", "info"), ("vanished", "warning"), ("failed", "warning")])
def test_checkpoint_settled(lines, journal, settle, verdict, level):
    """A settled checkpoint is a warning, unless it was passed over on purpose."""
    journal.plan(None, settles=[settle("ckpt-4", verdict, step=400, reason="because")])
    log.entry_logged(structlog.get_logger(), journal.history.entries[-1])
    (line,) = lines()
    assert about(line) == {
        "event": "checkpoint_settled",
        "level": level,
        "plan": 1,
        "checkpoint": "ckpt-4",
        "step": 400,
        "verdict": verdict,
        "reason": "because",
    }


def test_console_lines_are_for_one_pair_of_eyes():
    """On a terminal a line has no date, run or node, and numbers that can be read; JSON keeps all."""
    stream = io.StringIO()
    log.configure("console", stream)
    structlog.get_logger().bind(run="mnist", node="worker-0").info(
        "evaluation_succeeded", seconds={"save": 0.123456789}
    )
    (line,) = stream.getvalue().splitlines()
    assert "mnist" not in line
    assert "worker-0" not in line
    assert "{'save': 0.123457}" in line
    assert re.match(r"\d\d:\d\d:\d\d \[info", line)


def test_data_that_changed_are_told(lines, journal):
    """Beside the numbers, since a jump in a curve wants this explanation first."""
    journal.plan()
    entry = journal.succeed(changed=("test",))
    log.entry_logged(structlog.get_logger(), entry)
    (warning,) = [line for line in lines() if line["event"] == "eval_set_changed"]
    assert (warning["level"], warning["eval_sets"], warning["checkpoint"]) == ("warning", ["test"], "ckpt-5")
    assert "cannot be compared" in warning["remedy"]


def test_nonfinite_examples_are_told(lines, journal):
    """One line for an evaluation, which names each set and place; none where all is finite."""
    journal.plan()
    found = {"input": Nonfinite(1, 0, 0), "weight": Nonfinite(3, 3, 97)}
    log.entry_logged(structlog.get_logger(), journal.succeed(nonfinite=found))
    journal.plan()
    log.entry_logged(structlog.get_logger(), journal.succeed(nonfinite={"label": Nonfinite(2, None, None)}))
    journal.plan()
    log.entry_logged(structlog.get_logger(), journal.succeed())
    first, second = [line for line in lines() if line["event"] == "nonfinite_examples"]
    assert (first["level"], first["checkpoint"]) == ("warning", "ckpt-5")
    assert first["found"] == [
        "eval set 'test': 1 example has NaN or infinite inputs, the first is example 0 (batch 0), counted from 0",
        "eval set 'test': 3 examples have NaN or infinite weights, the first is example 97 (batch 3), counted from 0",
    ]
    assert second["found"] == ["eval set 'test': 2 examples have NaN or infinite labels"]


@pytest.fixture
def terminal():
    """Log for people, without colors; what was said, without the time of day."""
    stream = io.StringIO()
    log.configure("console", stream)
    return lambda: [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]


def test_chatter_is_left_out_for_people(terminal):
    """Leave out lines that only engineers of this program want to see."""
    structlog.get_logger().info("worker_started", worker="n.a.1", pid=1, address="h:1")
    assert terminal() == []


def test_verbose_shows_every_event_with_its_fields():
    """The verbose console shows an event of any kind with all its fields, as JSON does."""
    stream = io.StringIO()
    log.configure("console", stream, verbose=True)
    structlog.get_logger().info("worker_started", worker="n.a.1", pid=1, address="h:1")
    assert "worker_started" in stream.getvalue()
    assert "address=h:1" in stream.getvalue()
