"""Run a program that the kernel kills when its parent ends: `python -m sidecar.commands.demo.bound PROGRAM ARGUMENT…`.

torchrun starts its processes in sessions of their own. Without this they would outlive it if it is killed.
"""

import ctypes
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
