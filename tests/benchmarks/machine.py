"""On what something was measured: a number without its machine says nothing."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil


def cpus():
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def describe():
    """One line: CPU, cores, memory, versions, and how busy the machine was before."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras", "tf_keras"))
    return (
        f"{model}, {len(cpus())} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB; {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, {versions}; load before: {os.getloadavg()[0]:.2f}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []
