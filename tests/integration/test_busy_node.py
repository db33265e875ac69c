"""Training takes the only processor that workers may use, all the time."""

import os
import subprocess
import sys

import pytest
from numpy_trainer import NUMPY

WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
BUSY = "while True: pass"


@pytest.fixture
def processor():
    """One processor, which another program uses all the time."""
    one = str(max(os.sched_getaffinity(0)))
    words = ["taskset", "-c", one, sys.executable, "-c", BUSY]
    with subprocess.Popen(words, start_new_session=True) as program:
        yield one
        program.kill()


@pytest.mark.seconds
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
@pytest.mark.parametrize(
    ("before", "replaced"),
    [
        pytest.param((), False, id="its priority is raised"),
        pytest.param(WITHOUT_THE_RIGHT, True, id="it is replaced", marks=pytest.mark.nightly),
    ],
)
def test_an_evaluation_ends_on_a_busy_processor(numpy_trainer, sidecar, tmp_path, processor, before, replaced):
    """A worker that gives way starves. It is not taken for one that hangs, and takes turns after `yield_seconds`."""
    environ = NUMPY | {"SIDECAR_YIELD_SECONDS": "4", "SIDECAR_JOIN_TIMEOUT_SECONDS": "6"}
    before = ("taskset", "-c", processor, *before)
    daemon = sidecar.run(tmp_path / "ckpts", "--role", "worker", task="numpy_plain.py", before=before, **environ)
    first = daemon.logged("worker_starved")[0]
    assert first["waited_seconds"] >= 4.0
    assert first["restarted"] is replaced
    (saved,) = numpy_trainer.save(tmp_path / "ckpts", 1)
    assert daemon.evaluated(saved)
    assert not daemon.log("worker_overran")
