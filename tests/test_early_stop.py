"""A training loop asks at any step, and nothing in the file or the storage can disturb it."""

import asyncio
import errno
import json
import os
import subprocess
import sys

import pytest

from sidecar.early_stop import StopSignal, should_stop
from sidecar.errors import SettingsError

SIGNAL = {
    "reason": "test/accuracy has not improved for 3 evaluations",
    "metric": "test/accuracy",
    "best": 0.5,
    "best_step": 100,
    "best_checkpoint": "ckpt-100",
    "step": 400,
    "checkpoint": "ckpt-400",
    "patience": 3,
    "run": "0123",
    "created_at": "2026-01-31T12:00:00.000Z",
    "schema": 1,
}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ckpts"


@pytest.fixture
def file(place):
    folder = place / ".sidecar" / "ckpts"
    folder.mkdir(parents=True)
    return folder / "early_stop.json"


def test_there_is_no_signal(place):
    """Also before the directory exists."""
    assert should_stop(place) is None


def test_the_signal_is_read(place, file):
    """By the name of the directory, as text or as a path, or by the name of the run and its state directory."""
    file.write_text(json.dumps(SIGNAL | {"later": "field"}))
    signal = should_stop(place)
    assert signal == should_stop(str(place)) == StopSignal(**SIGNAL | {"reason": signal.reason})
    assert should_stop(place / "." / ".." / "ckpts").best == SIGNAL["best"]
    assert should_stop("anywhere", "ckpts", state_dir=place / ".sidecar") == signal
    assert should_stop(place, "another") is None
    file.unlink()
    assert should_stop(place) is None


def test_a_url_has_its_state_on_this_machine(tmp_path, monkeypatch):
    """Where the daemon of a bucket has it by default, or where its setting says, without a request."""
    from sidecar.settings import Settings

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = Settings(checkpoint_dir="s3://bucket/run").run_dir
    folder.mkdir(parents=True)
    assert should_stop("s3://bucket/run") is None
    (folder / "early_stop.json").write_text(json.dumps(SIGNAL))
    assert should_stop("s3://bucket/run").step == should_stop("s3://bucket/run/", "run").step == SIGNAL["step"]
    assert should_stop("s3://another/run") is None


def test_the_reason_says_how_to_train_on(place, file):
    """A resumed training that stops at once has no other message; the file may hold anything."""
    file.write_text(json.dumps(SIGNAL | {"reason": "no\x1b[2J improvement"}))
    reason = should_stop(place).reason
    assert "improvement" in reason
    assert reason.isprintable()
    assert f"delete {file}" in reason
    assert SIGNAL["created_at"] in reason


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"[" * 100_000),
        json.dumps(SIGNAL | {"patience": "3"}).encode(),
        json.dumps({key: value for key, value in SIGNAL.items() if key != "reason"}).encode(),
        json.dumps(SIGNAL | {"best": "nan"}).encode(),
        json.dumps(SIGNAL | {"reason": "x" * 100_000}).encode(),
        json.dumps(SIGNAL | {"schema": 2}).encode(),
    ],
)
def test_a_file_that_is_no_signal(place, file, content):
    """A file that is not a valid signal does not stop training."""
    file.write_bytes(content)
    assert should_stop(place) is None


def test_only_a_regular_file_counts(place, file, tmp_path):
    """Neither a link, nor a folder, nor a pipe that would never end."""
    real = tmp_path / "real.json"
    real.write_text(json.dumps(SIGNAL))
    file.symlink_to(real)
    assert should_stop(place) is None
    file.unlink()
    os.mkfifo(file)
    assert should_stop(place) is None
    file.unlink()
    file.mkdir()
    assert should_stop(place) is None


def test_storage_trouble_disturbs_no_training(place, file, system_calls):
    """Take any error of the system."""
    file.write_text(json.dumps(SIGNAL))
    for name in ("lstat", "open"):
        system_calls.refuse(name, errno.EIO)
        assert should_stop(place) is None
        system_calls.allow()
    assert should_stop("null\0character") is None


def test_a_question_costs_one_call_of_the_system(place, file, system_calls):
    """So a loop may ask at every step."""
    should_stop(place)
    calls = []
    system_calls.observe("lstat", calls.append)
    system_calls.observe("open", lambda *_, **__: calls.append("open"))
    for _ in range(3):
        should_stop(place)
    assert calls == [str(file)] * 3


def test_it_needs_the_standard_library_only():
    """It runs in the environment that trains."""
    code = "import sys; import sidecar.early_stop; print([m for m in ('pydantic', 'numpy', 'structlog', 'keras') "
    code += "if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_place_that_cannot_be_found_out(tmp_path):
    """A loop of links, or no such user: training goes on."""
    (tmp_path / "loop").symlink_to("loop")
    assert should_stop(tmp_path / "loop") is None
    assert should_stop("~nobody-here/ckpts") is None


@pytest.mark.seconds
def test_a_signal_in_a_bucket(use_bucket, new_place):
    """Training that sees no state directory reads the backup, also in a notebook, and goes on without the server."""
    server = use_bucket("localbucket")
    url = f"{server.url}/backups"
    lost = should_stop("ckpts", "mnist", state_dir=url)
    place = new_place("a", url)
    place.storage.replace("early_stop.json", json.dumps(SIGNAL).encode())
    place.send(1)

    async def notebook():
        return should_stop("elsewhere/mnist", state_dir=f"{url}/")  # another spelling is asked at once

    assert lost is None
    assert asyncio.run(notebook()).step == 400
    place.storage.remove("early_stop.json")
    place.send(2)
    assert should_stop("ckpts", "mnist", state_dir=f"{url}//") is None
    server.kill()
    assert should_stop("ckpts", "mnist", state_dir=f"{url}///") is None


def test_a_bucket_without_credentials_is_a_mistake(monkeypatch):
    """Training would never stop, and nobody would know why."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(SettingsError, match="AWS_ACCESS_KEY_ID"):
        should_stop("ckpts", "another", state_dir="s3://bucket/backups")
