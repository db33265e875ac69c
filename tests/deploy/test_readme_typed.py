"""A reader types the README in two terminals of a machine that has Debian's Python and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRY = Path(__file__).parent / "readme/try"


@pytest.mark.nightly
@pytest.mark.seconds
@pytest.mark.timeout(1800)  # the first time, Debian and PyTorch are downloaded
def test_the_readme_works_as_it_is_typed(needs):
    """All commands succeed, and the page's server counts each checkpoint of two trainings."""
    for program in ("debootstrap", "unshare", "ip", "git"):
        needs(program)
    if os.geteuid() != 0:
        pytest.skip("only root can make a chroot")
    done = subprocess.run([sys.executable, TRY], capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all from the first line to the first number" in done.stdout
