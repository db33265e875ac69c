"""Scans are so rare that none comes during a test, no file event arrives, and training tells the daemon of its save."""

import signal
import threading

import pytest
from numpy_trainer import NUMPY

import sidecar as training

RARE = {
    "SIDECAR_HTTP_NOTICES": "true",
    "SIDECAR_FILE_EVENTS": "off",
    "SIDECAR_SWEEP_SECONDS": "600",
    "SIDECAR_BUCKET_SCAN_SECONDS": "600",
}


@pytest.fixture
def ready():
    """Wait until a daemon has scanned, and return its address."""

    def wait(daemon):
        daemon.until(lambda: daemon.get("/readyz")[0] == 200, "a daemon that is ready")
        return daemon.logged("daemon_started")[0]["http"]

    return wait


def test_a_notice_is_not_lost_in_a_flood(sidecar, ready, numpy_trainer, tmp_path):
    """Hundreds of notices before the save keep the daemon from nothing, and cause a scan a second."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    daemon = sidecar.run(folder, task="numpy_plain.py", **NUMPY | RARE)
    address = ready(daemon)
    flood = threading.Thread(target=lambda: [training.notify(folder, address) for _ in range(300)])
    flood.start()
    (saved,) = numpy_trainer.save(folder, 10)
    flood.join()
    assert training.notify(folder / saved["name"], address)
    daemon.evaluated(saved)
    assert daemon.end(signal.SIGTERM).code == 0


def test_a_chief_says_that_it_does_not_scan(sidecar, tmp_path):
    """Training often runs where the chief's daemon listens."""
    (tmp_path / "ckpts").mkdir()
    daemon = sidecar.run(tmp_path / "ckpts", "--role", "chief", **NUMPY | RARE)
    address = daemon.logged("daemon_started")[0]["http"]
    assert not training.notify(tmp_path / "ckpts", address)
    assert daemon.end(signal.SIGTERM).code == 0
