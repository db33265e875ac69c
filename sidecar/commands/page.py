"""Serve the page of finished and running runs without a daemon: `sidecar page DIR…`, from shared storage alone.

Each run is observed in a thread of its own, as `sidecar status` observes one. A run whose storage hangs does not hold
the others up, and a run that cannot be read is listed with the reason.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

import typer
from prometheus_client import CollectorRegistry

from sidecar.commands.each_run import each_run
from sidecar.commands.load import settings_file, warn
from sidecar.commands.status.collect import RunObserver, RunStatus
from sidecar.commands.status.observe import observer_of
from sidecar.commands.status.render import as_json
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import SettingsError, SidecarError
from sidecar.publishing.evaluation_archive import ArchiveReader, DetailsReader
from sidecar.publishing.http import AccessFile, Server
from sidecar.publishing.run_list import ReadState, RunSummary
from sidecar.settings import Settings
from sidecar.system.bucket_folder import place_of
from sidecar.system.plain_text import counted, printable
from sidecar.version import version

ADDRESS: Final = "127.0.0.1:0"
"""Where the page is served by default: only this machine reaches it, and no daemon's port is in its way."""

LOOK_SECONDS: Final = 5.0
"""The time between two looks at a run. A page may stay open for days, so that this is longer than with `status`."""

_BEGINS: Final = "it is being read"

_OF_NODE: Final = ("node", "role", "role_source", "state", "version", "page_url", "workers")
"""The fields of a node that the page shows. Ages change with each reading, and would make every page a new one."""


@dataclass(slots=True, eq=False)
class ObservedRun:
    """Hold one run, and what `read` has found. HTTP threads only call `document` and `summary`."""

    settings: Settings
    timeout: StorageTimeout
    observer: RunObserver
    name: str
    facts: dict[str, Any] = field(default_factory=dict)  # to add to the status, such as the path of the list
    archive: ArchiveReader = field(init=False)
    _status: dict[str, Any] | None = None  # None: it was not read yet
    _reason: str | None = None  # why it cannot be read now

    def __post_init__(self) -> None:
        self.archive = ArchiveReader(DetailsReader(self.observer.storage, self.settings.run_dir))

    @property
    def place(self) -> str:
        """Return the directory or URL of the checkpoints."""
        return place_of(self.settings.checkpoint_dir)

    def read(self) -> None:
        """Read what is new. Raises `SidecarError` if it cannot be read."""
        try:
            status = self.timeout.call(self.observer.collect)
        except SidecarError as error:
            self._reason = str(error)
            raise
        self._reason = None
        if (document := self._document(status)) != self._status:
            self._status = document
        self.archive.update(status, status.history)

    def document(self) -> dict[str, Any]:
        """Return the content of /api/status, without what a daemon says of itself."""
        if self._reason is not None:
            return (self._status or {"run": self.name}) | {"hint": f"the run cannot be read now: {self._reason}"}
        return self._status or {"run": self.name, "hint": _BEGINS}

    def summary(self) -> RunSummary:
        """Return what the list of runs shows."""
        status = self._status
        alive = len(status["nodes"]) if status else 0
        told = f"{counted(alive, 'daemon is', 'daemons are')} alive" if alive else "no daemon is alive"
        return RunSummary(
            run=self.name,
            place=self.place,
            state=ReadState.UNREADABLE if self._reason else ReadState.READ,
            reason=self._reason or (_BEGINS if status is None else told),
            status=status,
            archive=self.archive,
        )

    def _document(self, status: RunStatus) -> dict[str, Any]:
        found = as_json(self.name, status)
        return found | {
            "nodes": [{key: node[key] for key in _OF_NODE} for node in found["nodes"] if node["fresh"]],
            "entries": status.history.log.count,
            "hint": status.no_run or None,
            "checkpoint_dir": self.place,
            "page_links": self.settings.page_links,
            "best_metric": self.settings.best_metric,
            "version": version(),
            **self.facts,
        }


def serve_page(
    flags: dict[str, Any],
    directories: Sequence[str],
    *,
    until: Callable[[], None],
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Serve the page of the runs until `until` returns. `directories`: those that were typed; none: as settings say.

    `look_seconds`: the time between two looks at a run.

    Raises `SettingsError` if no run is named, if the address cannot be used, or for a mistake in one that was typed.
    """
    runs = _runs(flags, directories)
    settings, several = runs[0].settings, len(runs) > 1
    server = Server(
        settings.http_host,
        settings.http_port,
        names=settings.http_hosts,
        registry=CollectorRegistry(),
        health=lambda: None,
        ready=lambda: None,
        status=runs[0].document,
        archive=None if several else runs[0].archive,
        runs=(lambda: [run.summary() for run in runs]) if several else None,
        access=AccessFile(settings.http_access),
    )
    server.start()
    ended = threading.Event()
    try:
        for run in runs:
            threading.Thread(target=_observe, args=(run, look_seconds, ended), name="observe", daemon=True).start()
        what = f"{len(runs)} runs" if several else f"run {runs[0].name}"
        typer.echo(printable(f"{what}: {server.url} (Ctrl-C ends it)"))
        until()
    finally:
        ended.set()
        server.close()


def _runs(flags: dict[str, Any], directories: Sequence[str]) -> list[ObservedRun]:
    """Return the runs, each with a name that no other one has."""
    flags = flags | {"http": flags["http"] or ADDRESS}
    if (here := settings_file(flags)).path is not None:
        warn(f"settings are read from {here.path}")
        flags |= {"config": here.path}  # so that it is told once
    listed = None if directories else each_run(flags)
    named = list(directories) if listed is None else [place.where for place in listed.places]
    found = []
    for directory in dict.fromkeys(named) or [flags["checkpoint_dir"]]:
        try:
            found.append(observer_of(flags | {"checkpoint_dir": directory}))
        except SidecarError as error:
            if listed is None:  # it was typed
                raise
            warn(f"{directory}: {error}")
    if not found:
        raise SettingsError("none of the runs that the settings name can be read")
    names = distinct([(settings.run, place_of(settings.checkpoint_dir)) for settings, _, _ in found])
    facts = {"all_runs": "/"} if len(found) > 1 else {}
    return [ObservedRun(*each, name=name, facts=facts) for each, name in zip(found, names, strict=True)]


def distinct(runs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each run, by its name and its directory: as many folders above it as tell it from the others.

    >>> distinct([("ckpts", "/exp/a/ckpts"), ("ckpts", "/exp/b/ckpts"), ("mnist", "/exp/c")])
    ['a-ckpts', 'b-ckpts', 'mnist']
    """
    names, above = [name for name, _ in runs], [list(PurePath(place).parts[1:-1]) for _, place in runs]
    while taken := {name for name, count in Counter(names).items() if count > 1}:
        if not any(folders for name, folders in zip(names, above, strict=True) if name in taken):
            break  # the same directory
        names = [
            f"{folders.pop()}-{name}" if name in taken and folders else name
            for name, folders in zip(names, above, strict=True)
        ]
    return names


def _observe(run: ObservedRun, look_seconds: float, ended: threading.Event) -> None:
    """Read a run again and again, and warn of what cannot be read."""
    told = ""
    while not ended.is_set():
        try:
            run.read()
        except SidecarError as error:
            if str(error) != told:
                warn(f"{run.place}: {error}")
            told = str(error)
        ended.wait(look_seconds)
