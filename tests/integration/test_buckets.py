"""Checkpoints lie in a bucket of a real server, and nothing is shared: each is evaluated once, with the usual bits."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bucket_server import BucketServer
from integration.torch_trainer import TORCH
from numpy_trainer import NUMPY
from obstore.store import from_url

pytestmark = pytest.mark.seconds


@dataclass
class Bucket:
    """A folder in a bucket, and a machine that shares nothing with anybody: `home` is its disk."""

    server: BucketServer
    sidecar: Any
    home: Path
    task: Path
    framework: dict
    folder: str = "run/ckpts"
    environ: dict = field(init=False)

    def __post_init__(self):
        self.url = f"{self.server.url}/{self.folder}"
        self.environ = {"XDG_STATE_HOME": str(self.home / "state"), "SIDECAR_BUCKET_SCAN_SECONDS": "0.5"}
        self.environ |= self.server.environment | self.framework

    def start(self, command, *words):
        """Start a command with the URL."""
        options = ["--task", f"{self.task}:task"] if command in ("run", "check", "eval") else []
        return self.sidecar.start(command, self.url, *words, *options, **self.environ)

    def command(self, command, *words):
        """How a command with the URL ends."""
        return self.start(command, *words).wait()

    def upload(self, path):
        """Put a file into the folder, as training does."""
        client = {"allow_http": True}
        names = {name.lower(): value for name, value in self.server.environment.items() if "ALLOW_HTTP" not in name}
        from_url(self.url, config=names, client_options=client).put(path.name, path.read_bytes())

    def locally(self, folder):
        """Return the numbers that a daemon finds which reads the same files in a directory."""
        words = ["--task", f"{self.task}:task", "--once"]
        assert self.sidecar.start("run", folder, *words, **self.framework).wait().code == 0
        return numbers(self.sidecar.command("history", folder, "--json", **self.framework))


def numbers(history):
    """Return what `history --json` says of each evaluation, but for times and places."""
    assert history.code == 0, history.err
    return [(row["checkpoint"], row["step"], row["status"], row["metrics"]) for row in json.loads(history.out)]


def is_open_to_others(path, top):
    """Return whether another user who may enter a folder may read a file below it."""
    above = path.parents[: path.parents.index(top)]
    return path.stat().st_mode & 0o044 and all(folder.stat().st_mode & 0o011 for folder in above)


@pytest.fixture
def new_bucket(sidecar, tasks, start_bucket, tmp_path):
    """`new_bucket("localbucket", task, settings)` is an empty folder on that server."""

    def make(name, task="numpy_plain.py", framework=NUMPY):
        return Bucket(start_bucket(name), sidecar, tmp_path, tasks / task, framework)

    return make


KINDS = [
    pytest.param("numpy_trainer", "numpy_plain.py", NUMPY, id="numpy"),
    pytest.param("torch_trainer", "torch_plain.py", TORCH, id="torch", marks=[pytest.mark.torch, pytest.mark.nightly]),
]


@pytest.mark.parametrize(("trainer", "task", "framework"), KINDS)
def test_a_bucket_has_the_bits_of_a_directory(request, until, new_bucket, tmp_path, trainer, task, framework):
    """A daemon evaluates every checkpoint once, while the server is killed and hangs, with the bits of a local run."""
    bucket, folder = new_bucket("localbucket", task, framework), tmp_path / "local"
    saved = [folder / each["name"] for each in request.getfixturevalue(trainer).save(folder, 10, 20, 30, 40)]
    daemon = bucket.start("run", "--stop-after-step", "40")

    def has_evaluated(count):
        return lambda: daemon.err.count('"evaluation_succeeded"') >= count

    bucket.upload(saved[0])
    until(has_evaluated(1), lambda: daemon.err)
    bucket.server.kill()
    until(lambda: '"storage_failed"' in daemon.err, lambda: daemon.err)
    bucket.server.start()
    bucket.upload(saved[1])
    bucket.server.stop()
    bucket.server.resume()
    for path in saved[2:]:
        bucket.upload(path)
    ended = daemon.wait()
    assert ended.code == 0, ended.err
    found = numbers(bucket.command("history", "--json"))
    assert [(step, status) for _, step, status, _ in found] == [
        (10, "succeeded"),
        (20, "succeeded"),
        (30, "succeeded"),
        (40, "succeeded"),
    ]
    assert found == bucket.locally(folder)
    state, secret = bucket.home / "state", bucket.environ["AWS_SECRET_ACCESS_KEY"]
    files = [path for path in state.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if is_open_to_others(path, state) or secret.encode() in path.read_bytes()] == []
    assert secret not in ended.err + ended.out


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["moto_server", "azurite-blob"])
def test_commands_take_a_url(numpy_trainer, new_bucket, tmp_path, name):
    """Every command that takes the directory takes its URL, and does what it can or says one sentence."""
    bucket = new_bucket(name)
    (saved,) = numpy_trainer.save(tmp_path / "local", 10)
    bucket.upload(tmp_path / "local" / saved["name"])
    checked = bucket.command("check")
    assert (checked.code, f"1 complete in {bucket.url}" in checked.out, "_KEY" in checked.out) == (0, True, True)
    assert bucket.command("run", "--once").code == 0
    assert [row[:3] for row in numbers(bucket.command("history", "--json"))] == [("model-10.npz", 10, "succeeded")]
    evaluated = bucket.command("eval", "--json")
    assert (evaluated.code, "model-10.npz" in evaluated.out) == (0, True), evaluated.err
    named = bucket.command("eval", "model-10.npz", "--json")
    assert (named.code, named.out.count("model-10.npz")) == (0, evaluated.out.count("model-10.npz")), named.err
    missing = bucket.command("eval", "model-11.npz")
    assert (missing.code, "model-11.npz" in missing.sentence, "model-10.npz" in missing.sentence) == (2, True, True)
    assert bucket.command("requeue", "model-10.npz", "--again").code == 0
    assert "export_best" in bucket.command("best").sentence
    bucket.environ |= {"SIDECAR_EXPORT_BEST": "1", "SIDECAR_BEST_METRIC": "test/accuracy"}
    assert bucket.command("run", "--once").code == 0
    copied = bucket.command("best", "--copy-to", tmp_path / "copied")
    assert copied.code == 0, copied.err
    assert (tmp_path / "copied" / "model-10.npz").read_bytes() == (tmp_path / "local" / saved["name"]).read_bytes()
    bucket.server.stop()
    status = bucket.command("status")
    assert (status.code, f"{bucket.url}, its state in {tmp_path}" in " ".join(status.out.split())) == (0, True)


def test_a_bucket_that_cannot_be_read_is_one_sentence(sidecar, tasks, tmp_path):
    """Without credentials, and for another kind of URL, a command ends before anything is sent."""
    environ = {"AWS_ACCESS_KEY_ID": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "", "XDG_STATE_HOME": str(tmp_path)} | NUMPY
    task = ("--task", f"{tasks / 'numpy_plain.py'}:task", "--once")
    run = sidecar.command("run", "s3://bucket/ckpts", *task, **environ)
    assert (run.code, "AWS_ACCESS_KEY_ID" in run.sentence) == (2, True)
    other = sidecar.command("run", "http://bucket/ckpts", *task, **environ)
    assert (other.code, "s3://bucket" in other.sentence) == (2, True)
    state = sidecar.command("status", "s3://bucket/ckpts", "--state-dir", "s3://bucket/state", **environ)
    assert (state.code, 'framework = "python"' in state.sentence) == (2, True)
    state = sidecar.command("status", tmp_path, "--state-dir", "s3://bucket/state", **environ)
    assert (state.code, "checkpoint_dir is a directory" in state.sentence) == (2, True)
