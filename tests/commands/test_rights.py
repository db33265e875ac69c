"""Show what a person is told by each command where the system refuses to look."""

import encodings.idna  # noqa: F401 - see below
import importlib
import pkgutil
import sys

import pytest
from users import MALLORY, acting_as, only_root, private_folder, shared_folder

from sidecar import commands
from sidecar.commands import cli

for _module in pkgutil.walk_packages(commands.__path__, "sidecar.commands."):
    if not _module.name.startswith("sidecar.commands.demo."):  # whose training imports a framework
        importlib.import_module(_module.name)  # the other user may not be able to read where it is installed


@only_root
@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["history"],
        ["requeue", "ckpt-1"],
        ["run", "--no-wait", "--task", "json:load"],
        ["check", "--task", "json:load"],
        ["eval", "ckpt-1", "--task", "json:load"],
    ],
    ids=lambda command: command[0],
)
def test_a_directory_above_which_nothing_may_be_read_is_named(command, capsys, monkeypatch):
    """One sentence with the path, and no traceback."""
    monkeypatch.setenv("SIDECAR_WORKER_PYTHON", "/usr/bin/env")
    monkeypatch.setenv("SIDECAR_FRAMEWORK", "tensorflow")
    with shared_folder() as root:
        place = private_folder(root) / "thesis" / "run"
        option = [] if command[0] == "eval" else ["--checkpoint-dir", str(place)]
        command = [str(place / each) if each == "ckpt-1" and command[0] == "eval" else each for each in command]
        sys.argv[:] = ["sidecar", *command, *option]
        with acting_as(MALLORY), pytest.raises(SystemExit) as ended:
            cli.run_command()
    said = "".join(capsys.readouterr())
    assert ended.value.code in (1, 2, 3, 4), said
    assert str(place) in said
    assert "Traceback" not in said
