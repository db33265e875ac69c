"""Another user of the group plants links, pipes and odd modes around a daemon: nothing of its user is touched."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from integration.trial import Trial
from users import GROUP, MALLORY, VICTIM, acting_as, is_untouched, only_root, private_folder, shared_folder

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), only_root]

AS_VICTIM = (
    *("setpriv", "--reuid", str(VICTIM), "--regid", str(GROUP), "--clear-groups"),
    *("sh", "-c", 'cd "$HOME" && umask 002 && exec "$@"', "sh"),
)


def opened(spare):
    """Return words before a command that let it reach this Python below a home that nobody else may enter."""
    base = Path(sys.base_prefix)
    closed = [parent for parent in base.parents if not parent.stat().st_mode & 1]
    if not closed:
        return ()
    aside = f"mount --bind {base} {spare} && mount -t tmpfs -o mode=755 none {closed[-1]} && "
    back = f"mkdir -p {base} && mount --bind {spare} {base} && "
    return ("unshare", "--mount", "sh", "-c", f'{aside}{back}exec "$@"', "sh")


class VictimsTrainer:
    """The trainer, as the user of the daemon."""

    def __init__(self, trainer):
        self._trainer = trainer

    def save(self, folder, *steps, **more):
        """Save as the trainer does, and give the files to the victim."""
        made = self._trainer.save(folder, *steps, **more)
        for each in made:
            os.chown(Path(folder) / each["name"], VICTIM, GROUP)
        return made


@pytest.fixture(scope="module")
def as_victim(tmp_path_factory):
    """Words before a command by which the victim runs it."""
    words = (*opened(tmp_path_factory.mktemp("python")), *AS_VICTIM)
    done = subprocess.run([*words, sys.executable, "-c", "import numpy, sidecar"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"another user cannot run this Python: {done.stderr[-200:]}")
    return words


@pytest.fixture
def shared(sidecar, numpy_trainer, until):
    """A trial in a folder that the group may write to, run by the victim; and the victim's own folder."""
    with shared_folder() as root:
        (root / "ckpts").mkdir(mode=0o2775)
        os.chown(root / "ckpts", VICTIM, GROUP)
        (root / "ckpts").chmod(0o2775)
        made = Trial(sidecar, VictimsTrainer(numpy_trainer), until, root)
        yield made, private_folder(root)
        made.end()


@pytest.fixture
def logs():
    """A folder in which the victim's workers may log."""
    folder = Path(tempfile.mkdtemp(prefix="sidecar-victim-"))
    os.chown(folder, VICTIM, GROUP)
    yield folder
    shutil.rmtree(folder)


def plant(run_dir, private):
    """Plant all that the other user may; return the links."""
    some = next((run_dir / "evaluations").glob("*/plan-*"))
    links = {
        some / "worker-0-of-9": private / "thesis",
        run_dir / "members" / "mallory.json": private / "n1.json",
        run_dir / "early_stop.json": private / "n1.json",
        run_dir / "sinks" / "early_stop.json": private / "n1.json",
        run_dir / "exports" / "best": private / "thesis",
        run_dir / "pins" / "model-1.npz@0123456789ab": private / "thesis",
        run_dir / "plans" / ".tmp-mallory": private / "n1.json",
        run_dir / "outcomes" / "mallory": private,
    }
    ckpts = run_dir.parents[1]
    with acting_as(MALLORY):
        for path, target in links.items():
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        for pipe in (run_dir / "members" / "fifo.json", run_dir / "early_stop.fifo", ckpts / "model-3.npz"):
            os.mkfifo(pipe)
        (ckpts / "model-4.npz").symlink_to(private / "n1.json")
        (run_dir / "pins" / "locked@0123456789ab").mkdir(mode=0)
        locked = run_dir / "members" / "locked.json"
        locked.write_text("{}")
        locked.chmod(0)
    return links


def test_another_user_plants_links_and_pipes(shared, as_victim, logs, until):
    """While a daemon runs and before it starts: each is named or passed over, each checkpoint is evaluated once."""
    trial, private = shared
    environ = {"SIDECAR_WORKER_LOGS": str(logs / "logs"), "HOME": str(logs), "SIDECAR_EXPORT_BEST": "1"}
    environ |= {"SIDECAR_BEST_METRIC": "test/loss", "SIDECAR_EARLY_STOP_PATIENCE": "50"}
    first = trial.start(before=as_victim, **environ)
    trial.save(3)
    trial.evaluated()
    links = plant(trial.run_dir, private)
    trial.save(2)
    trial.evaluated()
    assert first.get("/healthz") == (200, "ok\n")
    assert first.end(signal.SIGTERM).code == 0
    second = trial.start(before=as_victim, **environ)
    trial.save(2)
    trial.evaluated()
    assert second.get("/healthz") == (200, "ok\n")
    for path in ("/", "/metrics", "/api/status"):
        assert second.get(path)[0] == 200
    for daemon in trial.ended:
        assert "Traceback" not in daemon.err
    assert second.end(signal.SIGTERM).code == 0
    until(lambda: not trial.strays(), lambda: f"processes to end: {trial.strays()}")
    trial.judge_numbers(failures=0)
    assert is_untouched(private)
    said = "\n".join(daemon.err for daemon in trial.ended)
    for name in ("early_stop.json", "model-1.npz@0123456789ab", "locked"):
        assert name in said
    assert links
