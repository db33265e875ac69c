"""Find the Python interpreter of the environment that trains, which is often active where `sidecar` is typed.

Called by `sidecar init`, which writes it into the settings, and by a worker process whose interpreter lacks a module.
Standard library only: such a worker process has nothing else.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sidecar.system.child import output_of

_SECONDS: Final = 10.0  # the start of an interpreter takes 0.02 s; one on a silent share must not hold up a message
_ENVIRONMENTS: Final = ("VIRTUAL_ENV", "CONDA_PREFIX")
_TELL: Final = """\
import importlib.util, sys
print(sys.executable)
sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))
"""


def training_python(
    *modules: str, environ: Mapping[str, str] = os.environ, own: str = sys.executable
) -> tuple[Path, str] | None:
    """Return another interpreter than `own` that has these modules, and how it was found; None if there is none.

    The interpreter of an active environment comes first, then `python3` on the PATH, unless `own` has the modules.
    """
    own_has = _with(own, modules) is not None
    for path, source in _active(environ):
        python = _with(path, modules)  # where it is itself: the path may be that of a script which chooses one
        if own_has and _is_same(python or path, own):
            return None  # the environment that is active is its own
        if python is not None and (source in environ or not own_has):
            return python, source
    return None


def line_to_write(*modules: str, environ: Mapping[str, str] = os.environ, own: str = sys.executable) -> str:
    """Return what a person can do whose interpreter `own` lacks these modules: above all, the line to write."""
    if (found := training_python(*modules, environ=environ, own=own)) is not None:
        line = f'write worker_python = "{found[0]}" into sidecar.toml, or set SIDECAR_WORKER_PYTHON={found[0]}'
        return f"{line}: that Python, of {found[1]}, has it"
    return (
        'name the Python that trains, as in worker_python = "/path/to/train/bin/python" in sidecar.toml, or '
        f"SIDECAR_WORKER_PYTHON=/path/to/train/bin/python; else install it for {own}"
    )


def _active(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield the interpreters of the active environments, and the one on the PATH, each with how it was found."""
    for name in _ENVIRONMENTS:
        if environ.get(name):
            yield Path(environ[name], "bin", "python").absolute(), name
    if (on_path := shutil.which("python3", path=environ.get("PATH"))) is not None:
        yield Path(on_path).absolute(), "python3 on the PATH"


def _is_same(python: Path, own: str) -> bool:
    """Return whether two interpreters are one: interpreters of virtual environments are links to the same file."""
    try:
        return python.parent.samefile(Path(own).parent) and python.samefile(own)
    except OSError:
        return False


def _with(python: str | Path, modules: tuple[str, ...]) -> Path | None:
    """Return an interpreter's own path if it can evaluate with these modules; Python before 3.11 knows no option -P."""
    told = output_of((str(python), "-P", "-c", _TELL, *modules), seconds=_SECONDS)
    return None if told is None else Path(told.strip())
