"""Notice that another package named `sidecar`, such as JupyterLab's widget, took the place of files of this one.

Both have `sidecar/__init__.py`: the one that was installed last wins, and removing either removes it for both. Modules
below the package still work then, so each entry asks here. Standard library only.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

_OTHER: Final = "sidecar"
"""The name of the other distribution; this one is named sidecar-evaluator."""

_REMEDY: Final = (
    "install sidecar-evaluator into an environment of its own, or `pip uninstall sidecar` and install "
    "sidecar-evaluator again"
)


def replaced() -> str | None:
    """Return a sentence with the remedy if the package that was imported is not this one; None if it is."""
    package = sys.modules["sidecar"]
    if hasattr(package, "EvalSet"):
        return None
    place = getattr(package, "__file__", None) or f"{next(iter(package.__path__))}/__init__.py"
    return f"another package named sidecar, such as JupyterLab's, replaced or removed {place}: {_REMEDY}"


def installed_beside() -> str | None:
    """Return a sentence with the remedy if the other package is installed for this interpreter; None if it is not."""
    try:
        other = distribution(_OTHER)
    except PackageNotFoundError:
        return None
    return f"JupyterLab's package {_OTHER} {other.version} is installed here, too, and does not work now: {_REMEDY}"


def require_own_package() -> None:
    """Raise ImportError if the package that was imported is not this one."""
    if (why := replaced()) is not None:
        raise ImportError(why)
