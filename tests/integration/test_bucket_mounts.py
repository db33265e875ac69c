"""A bucket that is mounted as a folder: the state is refused there in one sentence, and checkpoints are evaluated."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from bucket_server import BUCKET
from numpy_trainer import NUMPY
from required import give_up


def s3fs(server, folder):
    """Return the words that mount the bucket of a server, and their variables."""
    password = folder / "password"
    password.write_text("S3RVER:S3RVER")
    password.chmod(0o600)
    return ["-f", "-o", f"passwd_file={password},url={server.address},use_path_request_style", BUCKET], {}


def rclone(server, folder):
    """Return the words that mount the bucket of a server, and their variables."""
    words = ["mount", "--vfs-cache-mode", "writes", "--cache-dir", str(folder / "cache"), f"bucket:{BUCKET}"]
    options = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": server.address}
    options |= {"ACCESS_KEY_ID": "S3RVER", "SECRET_ACCESS_KEY": "S3RVER"}
    return words, {f"RCLONE_CONFIG_BUCKET_{name}": value for name, value in options.items()}


@pytest.fixture
def mounted(needs, start_bucket, until, tmp_path):
    """`mounted(s3fs, "moto_server")` is the folder at which the bucket of that server is mounted."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        give_up("fuse3", "a filesystem in user space needs root and /dev/fuse")
    with contextlib.ExitStack() as stack:

        def mount(program, server):
            path = tmp_path / "mounted"
            path.mkdir()
            words, variables = program(start_bucket(server), tmp_path)
            process = subprocess.Popen(
                [needs(program.__name__), *words, path],
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            stack.callback(subprocess.run, ["umount", "--lazy", path], check=False)
            until(path.is_mount, f"{program.__name__} to mount the bucket", 60)
            return path

        yield mount


@pytest.mark.parametrize(
    ("program", "server"),
    [(rclone, "localbucket"), pytest.param(s3fs, "moto_server", marks=pytest.mark.nightly)],
)
def test_a_mounted_bucket_holds_checkpoints_and_no_state(
    program, server, mounted, sidecar, numpy_trainer, tmp_path, tasks
):
    """Both mounts lack links. rclone, which answers EIO, changes the time of each file that it lets somebody read."""
    checkpoints = mounted(program, server) / "ckpts"
    checkpoints.mkdir()
    words = ("run", checkpoints, "--once", "--role", "worker", "--task", f"{tasks / 'numpy_plain.py'}:task")
    refused = sidecar.command(*words, **NUMPY)
    assert refused.code == 4
    assert "no hard links" in refused.sentence
    assert "--state-dir" in refused.sentence
    (saved,) = numpy_trainer.save(tmp_path / "trained", 10)
    shutil.copyfile(tmp_path / "trained" / saved["name"], checkpoints / saved["name"])
    state = tmp_path / "state"
    evaluated = sidecar.command(*words, "--state-dir", state, **NUMPY)
    assert (evaluated.code, evaluated.err.count("evaluation_succeeded")) == (0, 1), evaluated.err
