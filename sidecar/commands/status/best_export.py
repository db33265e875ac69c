"""Read and describe the best export for `sidecar status`, without reading the checkpoint itself, which may be large."""

import textwrap
from typing import Any, Final

from sidecar.commands.best import BestExport, read_best
from sidecar.coordination.storage import Storage
from sidecar.errors import SidecarError
from sidecar.retention.saves.comparison import RULES
from sidecar.settings import Settings

_SHOWN: Final = ("path", "checkpoint", "digest", "step", "ranks", "better_than")
_MOST_CHARACTERS: Final = 200  # of a comparison: other users may be able to write the manifest


def read_best_export(settings: Settings, storage: Storage) -> BestExport | None:
    """Return the best export; None if there is none that can be read, and `sidecar best` says why."""
    try:
        return read_best(settings, storage)
    except SidecarError:
        return None


def best_export_json(best: BestExport) -> dict[str, Any]:
    """Return the facts of `sidecar best --json` that say where the best export is, and why it is the best one."""
    document = best.as_json()
    return {key: document[key] for key in _SHOWN}


def best_export_line(best: BestExport) -> str:
    """Return the path of the best export, how much better it is than the best one before, and by which rule."""
    better = best.manifest.better_than
    if better is None or better.rule not in RULES:
        return f"export  {best.path}"
    return f"export  {best.path}, better {textwrap.shorten(better.describe(), _MOST_CHARACTERS)}"
