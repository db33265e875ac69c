"""Shared by all tests: checkpoints of a real training, made once per session by a process of its own."""

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

TASKS = Path(__file__).parent / "tasks"
DAEMONS = ("tests/demo/", "tests/integration/")
"""Folders whose tests start daemons: one of these tests at a time, the tests of other folders next to it."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a script: `nohup make test &`
    # Programs under test would inherit that, and no Ctrl-C would end them. A handler is not inherited.
    signal.signal(signal.SIGINT, lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        """Hands out whole files, so that what a file prepares is prepared once."""

        def _split_scope(self, nodeid: str) -> str:
            return "daemons" if nodeid.startswith(DAEMONS) else nodeid.partition("::")[0]

    return Scheduler(config, log)


@pytest.fixture(autouse=True)
def _unconfigured_log():
    """A command that a test runs configures the log for the whole process."""
    yield
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()


@dataclass(frozen=True)
class Trained:
    """What the trainer left behind: one folder per kind of checkpoint, and what plain Keras says about each."""

    folder: Path
    expected: dict

    def path(self, kind: str) -> str:
        """The prefix that TensorFlow restores from."""
        return str(self.folder / kind / "ckpt-1")


@pytest.fixture(scope="session")
def quiet_environment() -> dict[str, str]:
    """The environment of a TensorFlow process on a machine without GPU."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}


@pytest.fixture(scope="session")
def trained(tmp_path_factory, quiet_environment) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TASKS / "trainer.py"), str(folder)],
        env=quiet_environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Trained(folder, json.loads((folder / "expected.json").read_text()))


@pytest.fixture(scope="session")
def digits(quiet_environment):
    """The module tests/tasks/digits.py."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's own deprecations, at import
        for name in ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND"):
            patch.setenv(name, quiet_environment[name])
        sys.path.insert(0, str(TASKS))
        import digits as module

        module.arrays()
    return module
