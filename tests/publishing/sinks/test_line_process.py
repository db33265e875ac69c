"""A process answers lines, and is killed if it does not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from processes import written

from sidecar.publishing.sinks.line_process import LineProcess, NoAnswerError

PATIENCE_SECONDS = 240.0


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = LineProcess("line_program", {"GIVEN": "yes"})
    yield made
    made.close()


def gone(pid):
    """Return whether no process has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_process_answers_all_questions(process):
    """Also long ones; it gets the variables, and ends when it is closed."""
    first = process.ask({}, PATIENCE_SECONDS)
    second = process.ask({"long": "x" * 1_000_000}, PATIENCE_SECONDS)
    assert (first["given"], second["pid"], second["size"] > 1_000_000) == ("yes", first["pid"], True)
    process.close()
    assert gone(first["pid"])


def test_a_process_that_had_ended_is_started_again(process):
    """One that has nothing to do ends, and the next question is not lost."""
    first = process.ask({"end_afterwards": True}, PATIENCE_SECONDS)
    assert process.ask({}, PATIENCE_SECONDS)["pid"] != first["pid"]


def test_a_process_that_ends_without_an_answer(process):
    """That is an error, of a new process and of one that had answered before."""
    with pytest.raises(NoAnswerError, match="line_program"):
        process.ask({"end": True}, PATIENCE_SECONDS)
    process.ask({}, PATIENCE_SECONDS)
    with pytest.raises(NoAnswerError, match="line_program"):
        process.ask({"end": True}, PATIENCE_SECONDS)


@pytest.mark.parametrize("question", [{"hang": True}, {"flood": True}])
def test_a_process_that_hangs_is_killed(process, question):
    """After the time limit, or as soon as its answer is too long."""
    pid = process.ask({}, PATIENCE_SECONDS)["pid"]
    began = time.monotonic()
    with pytest.raises(NoAnswerError):
        process.ask(question, 1.0)
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert gone(pid)
    assert process.ask({}, PATIENCE_SECONDS)["pid"] != pid


def test_open_files_are_passed_on(process, tmp_path):
    """To a process of their own, which ends afterwards, and to no later one."""
    (tmp_path / "file").write_text("content")
    pid = process.ask({}, PATIENCE_SECONDS)["pid"]
    with (tmp_path / "file").open("rb", buffering=0) as file:
        answer = process.ask({"read": file.fileno()}, PATIENCE_SECONDS, descriptors=(file.fileno(),))
    assert answer["read"] == "content"
    assert gone(pid)
    assert gone(answer["pid"])


def test_a_module_that_is_missing():
    """Its process ends at once."""
    with pytest.raises(NoAnswerError, match="no_such_module"):
        LineProcess("no_such_module", {}).ask({}, PATIENCE_SECONDS)


def test_a_process_ends_with_a_daemon_that_is_killed(tmp_path):
    """An upload that goes on would meet its repetition by the restarted daemon."""
    code = (
        "import sys\nfrom sidecar.publishing.sinks.line_process import LineProcess\n"
        "process = LineProcess('line_program', {'GIVEN': 'yes'})\n"
        f"print(process.ask({{}}, {PATIENCE_SECONDS})['pid'], file=open(sys.argv[1], 'w'), flush=True)\n"
        "process.ask({'hang': True}, 600.0)"
    )
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pid")], env=variables) as daemon:
        (pid,) = written(tmp_path / "pid", 1)
        daemon.kill()
    assert processes.gone(pid)
