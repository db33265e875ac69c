"""Name the instructions of this processor by which libraries choose how to add up floats."""

import platform
from pathlib import Path
from typing import Final

_ISA_FLAGS: Final = ("avx", "avx2", "fma", "avx512", "avx_vnni", "amx")
"""CPU features by which TensorFlow, oneDNN and BLAS choose kernels, hence the order in which floats are added."""


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the machine's architecture and those of its CPU features that matter."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    found = sorted(flag for flag in flags if flag.startswith(_ISA_FLAGS))
    return " ".join([platform.machine(), *found])
