"""Observe the running job for some minutes, and print the numbers of saved, evaluated, repeated and lost checkpoints.

Disturb the job meanwhile: restart a trainer, stop a daemon. The script also prints the resources of the daemons, and
exits with 1 if a checkpoint was lost or evaluated twice. MINUTES is the time of the observation.
"""  # noqa: INP001 - a script next to others, not a package

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import promql
import run_files

_PAUSE_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 300.0  # the time in which a group forms again after the last checkpoint, on a busy machine
_SETTLED_SECONDS: Final = 60.0  # at the start a daemon still fills its caches

_MEBIBYTE: Final = 2**20
_FIGURES: Final[Mapping[str, tuple[str, float]]] = {
    "process_resident_memory_bytes": ("daemon RSS, MiB", _MEBIBYTE),
    "process_open_fds": ("daemon descriptors", 1),
    "process_cpu_seconds_total": ("daemon CPU, s", 1),
    "sidecar_worker_resident_memory_bytes": ("worker RSS, MiB", _MEBIBYTE),
}


def main() -> None:
    """Observe the job, wait for the running evaluations, and count."""
    started, seconds = time.time(), 60 * float(os.environ["MINUTES"])
    old = set(run_files.checkpoints())
    saved: dict[str, float] = {}  # name: when it was seen
    while time.time() < started + seconds:
        for name in run_files.checkpoints():
            if name not in old and name not in saved:
                saved[name] = time.time()
                _say(f"{saved[name] - started:6.0f} s  {name}")
        time.sleep(_PAUSE_SECONDS)
    deadline = time.time() + _DRAIN_SECONDS
    while not saved.keys() <= _evaluated().keys() and time.time() < deadline:
        time.sleep(_PAUSE_SECONDS)

    evaluated = _evaluated()
    lost = [name for name in saved if name not in evaluated]
    repeated = [name for name in saved if evaluated[name] > 1]
    gaps = [after - before for before, after in zip(saved.values(), list(saved.values())[1:], strict=False)]
    failed = Counter(plan.kind for plan in run_files.plans() if plan.status == "failed")
    _say(f"checkpoints saved {len(saved)}, evaluated {len(saved) - len(lost)}, lost {lost}, evaluated twice {repeated}")
    _say(f"longest time between two checkpoints {max(gaps, default=0):.0f} s; failed attempts {dict(failed)}")
    _resources(time.time() - started)
    if not saved or lost or repeated:
        sys.exit("FAILED: a checkpoint was lost or evaluated twice" if saved else "FAILED: no checkpoint was saved")
    _say("PASSED")


def _evaluated() -> Counter[str]:
    return Counter(plan.checkpoint for plan in run_files.plans() if plan.status == "succeeded")


def _resources(seconds: float) -> None:
    """Print memory, descriptors and CPU time of the daemons and their workers."""
    row = "{:<22} {:<24} {:>9} {:>9} {:>9}"
    _say(row.format("", "", "start", "most", "end"))
    for metric, (title, unit) in _FIGURES.items():
        for series in promql.samples(f'{metric}{{job="sidecar"}}', seconds - _SETTLED_SECONDS):
            values = [value / unit for _, value in sorted(series.values.items())]
            figures = (f"{value:.1f}" for value in (values[0], max(values), values[-1]))
            _say(row.format(title, series.labels["instance"], *figures))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
