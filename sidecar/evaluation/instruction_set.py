"""Name the instruction sets of this processor. Libraries choose by them in which order to add floats."""

import platform
from pathlib import Path
from typing import Final

_ISA_FLAGS: Final = ("avx", "avx2", "fma", "avx512", "avx_vnni", "amx")
"""CPU features by which TensorFlow, oneDNN and BLAS choose kernels, and so the order of additions."""


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the architecture of the machine and its CPU features from `_ISA_FLAGS`."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    relevant = sorted(flag for flag in flags if flag.startswith(_ISA_FLAGS))
    return " ".join([platform.machine(), *relevant])
