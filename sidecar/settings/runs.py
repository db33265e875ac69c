"""Find the runs that one daemon serves, and give each its settings: the shared ones, and those of its own file.

`runs` names directories, globs and URLs. A run has the name of its directory, or what the wildcards of its glob stand
for: with `/shared/*/ckpts` the run in `/shared/exp-1/ckpts` is `exp-1`. The daemon, and every command that is to find
the same run, take the name from here.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Final

from sidecar.errors import SettingsError
from sidecar.settings.model import Settings
from sidecar.settings.sources import OWN_FILE, Given, read_given, why_untrusted
from sidecar.system.bucket_url import is_url

_MOST_BYTES: Final = 256 * 1024  # of the settings file of a run
_NOWHERE: Final = Path("/dev/null/nowhere")

_OF_THE_NODE: Final = (
    *("runs", "runs_at_once", "run_turn_seconds", "runs_scan_seconds", "checkpoint_dir", "engine"),
    *("node", "role", "chief_nodes", "host", "http", "http_hosts", "http_access", "http_notices", "page_url"),
    *("log_format", "wait"),
)
_REFUSED: Final[Mapping[str, str]] = dict.fromkeys(
    _OF_THE_NODE, "the daemon serves several runs with one value for all: write it into the daemon's own file"
)
_FOLDERS: Final = ("tensorboard_dir", "worker_logs")
"""Settings whose shared value gets a folder for each run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Hold where a run has its checkpoints, and the name that follows from it; None: that of the directory."""

    where: str
    run: str | None = None
    found: bool = False  # by a glob, so that the run ends when the directory is gone

    @property
    def name(self) -> str:
        """Return the name of the run, unless its own settings name it."""
        return Path(self.where).name if self.run is None else self.run


@dataclass(frozen=True)
class SharedSettings:
    """Hold the settings of a daemon of several runs."""

    given: Given

    @cached_property
    def node(self) -> Settings:
        """Return the settings of the daemon itself. Raises `SettingsError`, also for a setting that no run can have."""
        nowhere = {"checkpoint_dir": _NOWHERE}
        if is_url(self.given.values.get("state_dir")):  # fits to the URLs of runs, and not to a directory
            nowhere["state_dir"] = _NOWHERE / ".sidecar"
        settings = self.given.with_values(nowhere, {}).settings()
        if settings.engine != "local":
            raise SettingsError(f"engine = {settings.engine!r} serves one run: write checkpoint_dir instead of runs")
        if settings.min_workers > settings.replicas:
            raise SettingsError(
                f"min_workers = {settings.min_workers}: with runs each node gives its worker processes to the run that "
                f"waits, so no group has more than replicas = {settings.replicas} for certain: write that or less"
            )
        return settings

    def places(self) -> list[Place]:
        """Return the places of all runs that exist now. This reads storage."""
        places = dict[str, Place]()
        for pattern in self.node.runs:
            for place in [Place(pattern)] if is_url(pattern) or not has_magic(pattern) else _found(pattern):
                places.setdefault(place.where, place)
        return list(places.values())

    def settings_of(self, place: Place) -> Settings:
        """Return the settings of a run. Raises `SettingsError`.

        A settings file in its directory that another user may have written is ignored.
        """
        shared = {
            key: f"{str(self.given.values[key]).rstrip('/')}/{place.name}"
            for key in _FOLDERS
            if self.given.values.get(key)
        }
        given = self.given.with_values({"run": place.name, "checkpoint_dir": place.where, **shared}, {})
        if (text := _own_text(place)) is not None:
            given = given.with_file(Path(place.where, OWN_FILE), text, _REFUSED)
        return given.settings()

    def settings_of_one(self, directory: str | None, run: str | None) -> Settings | None:
        """Return the settings of the run with this directory or this name; of the only one, if neither is given.

        Return None if no run has this directory. Raises `SettingsError` if it is not clear which run is meant.
        """
        places = self.places()
        if directory is not None:
            where = directory if is_url(directory) else str(Path(directory).expanduser().absolute())
            return next((self.settings_of(place) for place in places if place.where == where), None)
        found = [place for place in places if run in (None, place.name)]
        if len(found) == 1:
            return self.settings_of(found[0])
        names = ", ".join(sorted({place.name for place in places})) or "none so far"
        what = "several" if run is None else "none, or several, of this name"
        raise SettingsError(f"runs = {list(self.node.runs)!r} names {what}: choose one with --run NAME, of {names}")


def load(flags: Mapping[str, Any], *, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of one run; raises `SettingsError` with every problem found, one per line.

    `flags` holds the options given, by setting, and `config`, as in `read_given`. With `runs`, the directory or the
    name of a run chooses one of them.
    """
    given = read_given(flags, environ)
    shared = _shared(given)
    if shared is None:
        return given.settings()
    directory, run = (given.values.get(key) for key in ("checkpoint_dir", "run"))
    return shared.settings_of_one(None if directory is None else str(directory), run) or given.settings()


def load_shared(flags: Mapping[str, Any], *, environ: Mapping[str, str] = os.environ) -> SharedSettings | None:
    """Return the settings of a daemon of several runs; None if one run is named, or none."""
    given = read_given(flags, environ)
    names_one = given.values.get("checkpoint_dir") or given.values.get("run")
    return None if names_one else _shared(given)


def _shared(given: Given) -> SharedSettings | None:
    """Return the settings of several runs, without those of one; None if there are none."""
    values = {key: value for key, value in given.values.items() if key not in ("checkpoint_dir", "run")}
    return SharedSettings(replace(given, values=values)) if values.get("runs") else None


def why_ignored(place: Place) -> str | None:
    """Return why the settings file of a run is not read although it exists; None if it is read, or does not exist."""
    if is_url(place.where):
        return None
    path = Path(place.where, OWN_FILE)
    try:
        status = path.lstat()
    except OSError:
        return None
    return _why_untrusted(status)


def _why_untrusted(status: os.stat_result) -> str | None:
    """Return why a file in the directory of a run may be another user's work; None if it is not.

    Its group counts, too, unless it is this user's own one: such directories are often shared with a group.
    """
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
        return "its group may write to it"
    return why_untrusted(status)


def _found(pattern: str) -> list[Place]:
    """Return the directories that a glob finds, each with the name that its wildcards stand for."""
    wild = [place for place, part in enumerate(pattern.split("/")) if has_magic(part)]
    places = []
    for where in sorted(glob(pattern)):  # noqa: PTH207 - it keeps the text of the pattern
        parts = where.split("/")
        if os.path.isdir(where):  # noqa: PTH112 - false for what may not be looked at
            places.append(Place(where.rstrip("/"), "-".join(parts[place] for place in wild), found=True))
    return places


def _own_text(place: Place) -> str | None:
    """Return the text of the settings file in a run's directory; None if there is none that may be trusted."""
    if is_url(place.where):
        return None
    path = Path(place.where, OWN_FILE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if why_ignored(place) is not None:
            return None
        raise SettingsError(f"file {path}: cannot be read ({error.strerror})") from error
    try:
        if _why_untrusted(os.fstat(descriptor)) is not None:
            return None
        content = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST_BYTES:
        raise SettingsError(f"file {path}: has more than {_MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"file {path}: not TOML: {error}") from error
