"""Find the checkpoint that `sidecar eval` and `sidecar.evaluate` are given: by its path, or by its directory or URL."""

import glob
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from sidecar.checkpoints.formats import dcp, orbax, pretrained_folder, saved_model
from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.commands.from_settings import make_catalog
from sidecar.commands.load import load_settings
from sidecar.errors import SettingsError
from sidecar.protocol.weight_names import DCP_METADATA, main_weights
from sidecar.settings import Settings, load
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.bucket_url import is_url

_MARKERS: Final = (saved_model.MARKER, orbax.MARKER, DCP_METADATA, dcp.UNCOORDINATED)


def find_checkpoint(
    flags: dict[str, Any], words: Sequence[Path], report: Callable[[str], None]
) -> tuple[Settings, Path]:
    """Return the settings, and the path of the checkpoint: the one that is named, or the newest one of a directory.

    `flags`: the options that name settings. `words`: a directory or its URL, and the name of a checkpoint in it, or the
    path of a checkpoint; `checkpoint_dir` is taken from them if there is no option. Raises `SettingsError` if settings
    are wrong, or a directory has no such checkpoint that is complete.
    """
    if not words or is_url(words[0]):
        settings = load_settings(_at(flags, *words[:1]))
        settings.require_task()
        return settings, newest_in(settings, report, *map(str, words[1:]))
    path = Path(*words).absolute()
    is_directory = _is_directory_of_checkpoints(path, None)
    settings = load_settings(_at(flags, path if is_directory else path.parent))
    pattern = settings.checkpoint_pattern
    if is_directory and not _is_directory_of_checkpoints(path, pattern):
        is_directory, settings = False, load(_at(flags, path.parent))
    settings.require_task()
    if is_directory:
        return settings, newest_in(settings.model_copy(update={"checkpoint_dir": path}), report)
    is_index = path.suffix == ".index" and not (pattern is not None and fnmatchcase(path.name, pattern))
    return settings, path.with_suffix("") if is_index else path


def _at(flags: dict[str, Any], place: Path | None = None) -> dict[str, Any]:
    """Return the options with a place as `checkpoint_dir`, unless they name one."""
    return flags | {"checkpoint_dir": flags["checkpoint_dir"] or place}


def _is_directory_of_checkpoints(path: Path, pattern: str | None) -> bool:
    """Return whether a path is a directory of checkpoints, and not a checkpoint that is itself a directory.

    A folder of Hugging Face's libraries is a checkpoint, unless it has a state directory: then a daemon watches it.
    With `checkpoint_pattern` a folder whose own name matches is a checkpoint, unless it holds entries that match, too.
    """
    if not path.is_dir() or any((path / marker).exists() for marker in _MARKERS) or _is_pretrained(path):
        return False
    if pattern is None or not fnmatchcase(path.name, pattern):
        return True
    return any(fnmatchcase(entry.name, pattern) for entry in path.iterdir())


def _is_pretrained(path: Path) -> bool:
    """Return whether a directory holds the weights of one model with their description, as `save_pretrained` writes."""
    names = {entry.name for entry in path.iterdir()}
    is_described = not names.isdisjoint(pretrained_folder.DESCRIPTIONS)
    return is_described and main_weights(names) is not None and ".sidecar" not in names


def newest_in(settings: Settings, report: Callable[[str], None], name: str | None = None) -> Path:
    """Return the newest complete checkpoint of the checkpoint directory, or that of a name.

    It is the last one in the order in which a daemon would evaluate them: see `checkpoints.discovery_order`. Raises
    `SettingsError` if there is none.
    """
    place = settings.checkpoint_dir
    if not isinstance(place, BucketFolder) and not place.is_dir():
        remedy = similar_folder(place) or "name the one that training saves its checkpoints in"
        raise SettingsError(f"there is no directory {place}: {remedy}")
    scan = make_catalog(settings, once=True).scan()
    present = [found for found in scan.found if any(place.glob(glob.escape(found.checkpoint.name) + "*"))]
    if not present:
        waiting = "".join(f"; {name} is not complete: {reason}" for name, reason in scan.waiting[:3])
        below = "" if scan.below is None else f"; {scan.below}"
        raise SettingsError(f"there is no complete checkpoint in {place_of(place)}{waiting}{below}")
    if name is not None:
        names = [found.checkpoint.name for found in present]
        if name not in names:
            raise SettingsError(
                f"there is no complete checkpoint {name} in {place_of(place)}; the newest are {', '.join(names[-3:])}"
            )
        return place / name
    newest = present[-1].checkpoint.name
    report(f"{newest} is evaluated, the newest of {len(present)} in {place_of(place)}")
    return place / newest
