"""Ten files that keep their reader busy lie beside good checkpoints: nothing but these files waits."""

import json
import os
import re
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints.hostile import frame, index_of_shards, metadata_of, safetensors

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

GOOD = 100
BEAT_SECONDS = 0.5  # as in conftest.py
WIDTH = 16
PEAK_BYTES = 160 << 20  # 60 without such files


def save(folder: Path, step: int) -> str:
    """Save a good checkpoint."""
    random = np.random.default_rng(step)
    arrays = {"hidden": random.uniform(-1, 1, (4, WIDTH)), "output": random.uniform(-1, 1, (WIDTH, 3))}
    at, header = 0, {}
    for name, array in arrays.items():
        header[name] = {"dtype": "F64", "shape": array.shape, "data_offsets": (at, at + array.nbytes)}
        at += array.nbytes
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())
    (folder / f".model-{step}").write_bytes(content)
    (folder / f".model-{step}").rename(folder / f"model-{step}.safetensors")
    return f"model-{step}.safetensors"


def plant(folder: Path) -> set[str]:
    """Save ten checkpoints whose structure takes as long as each format allows, and return their names."""
    count = 250_000
    header = b"{" + b",".join(b'"%d":{"data_offsets":[%d,%d]}' % (n, n, n + 1) for n in range(count)) + b"}"
    for number in range(4):
        safetensors(folder, header, "", count, f"a{number}.safetensors")
    for number in range(2):
        shards = [f"b{number}-{shard:05d}-of-00100.safetensors" for shard in range(1, 101)]
        for shard in shards:
            os.link(folder / "a0.safetensors", folder / shard)
        (folder / f"b{number}.safetensors.index.json").write_text(json.dumps({"weight_map": {s: s for s in shards}}))
    part = b"(h\x01h\x02h\x03K\x00h\x04K\x01ub"
    for number in range(2):
        (inner := folder / f"c{number}").mkdir()
        metadata_of(inner, frame(b"\x8c\x0c__0_0.distcp\x94") + frame(part * 4_000_000 + b"."), "")
        (inner / "m").rename(folder / f"d{number}")
        inner.rmdir()
    for number in range(2):
        index_of_shards(folder, b"{" + b'"":1,' * 3_300_000 + b'"":2}', "")
        (folder / "m.safetensors.index.json").rename(folder / f"e{number}.safetensors.index.json")
    return {
        *(f"a{n}.safetensors" for n in range(4)),
        *(f"b{n}.safetensors.index.json" for n in range(2)),
        *(f"d{n}" for n in range(2)),
        *(f"e{n}.safetensors.index.json" for n in range(2)),
    }


class Beats:
    """Watch the heartbeat of a daemon, and note the longest time between two."""

    def __init__(self, run_dir: Path) -> None:
        self.longest, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(run_dir / "members",))
        self._thread.start()

    def _watch(self, folder: Path) -> None:
        last, at = None, time.monotonic()
        while not self._over.wait(0.02):
            now = [path.stat().st_mtime_ns for path in folder.glob("*.json")] or None
            if now != last:
                self.longest = max(self.longest, time.monotonic() - at if last else 0.0)
                last, at = now, time.monotonic()

    def end(self) -> None:
        """Stop watching the heartbeat."""
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("planted", [0, 10])
def test_nothing_waits_for_hostile_files(sidecar, tmp_path, planted, record_property):
    """All good checkpoints are evaluated, the node keeps its beat, and nobody blames the storage."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    names = plant(folder) if planted else set()
    good = {save(folder, step) for step in range(1, GOOD + 1)}
    start = time.monotonic()
    daemon = sidecar.run(folder, "--start", "all", task="safetensors_plain.py", SIDECAR_FRAMEWORK="python")
    daemon.logged("daemon_started")
    beats = Beats(daemon.run_dir)
    try:
        daemon.until(
            lambda: good <= {row["checkpoint"] for row in daemon.successes()}, "evaluations of the good ones", 600
        )
    finally:
        beats.end()
    seconds = time.monotonic() - start
    peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text())[1])
    record_property("seconds", seconds)
    record_property("longest_beat", beats.longest)
    record_property("peak_megabytes", peak >> 20)
    assert "has not answered" not in daemon.err
    assert beats.longest < 10 * BEAT_SECONDS
    assert peak < PEAK_BYTES
    assert daemon.get("/healthz") == (200, "ok\n")
    evaluated = {row["checkpoint"] for row in daemon.successes()}
    assert evaluated - good <= names
