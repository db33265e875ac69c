"""Make what one run needs in the process of a daemon: its daemon, its sinks, and the values of its page and metrics.

`serve` makes one of these, `many_runs` one for each run.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from sidecar.commands.bootstrap import AmongRuns, daemon_from_settings
from sidecar.commands.framework import with_framework
from sidecar.commands.sinks import all_delivered, start_deliveries, start_uploads, statuses
from sidecar.commands.state_storage import state_storage
from sidecar.commands.task_file import check_before_import
from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.events import Message
from sidecar.daemon.loop import Daemon
from sidecar.daemon.storage_thread import StorageThread
from sidecar.policy.roles import RoleDecision
from sidecar.publishing.evaluation_archive import ArchiveReader, DetailsReader
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.publisher import Published, Publisher, failed_worker_log
from sidecar.publishing.sinks.delivery_thread import close
from sidecar.publishing.status import Status
from sidecar.settings import Settings
from sidecar.system.bucket_folder import place_of
from sidecar.system.clock import Clock
from sidecar.system.event_log import EventLog

_CLOSE_SECONDS = 2.0  # for the last request to storage


def settings_to_serve(settings: Settings, decision: RoleDecision) -> Settings:
    """Return the settings with the framework of the task. Raises `SettingsError` if this node cannot evaluate so."""
    if decision.role != "worker":
        return settings
    settings.require_task()
    check_before_import(settings)
    return with_framework(settings, Path.cwd())


class ServedRun:
    """Hold the parts of one run in this process. The daemon may be replaced; all else is made once."""

    daemon: Daemon

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        node: str,
        decision: RoleDecision,
        clock: Clock,
        log: EventLog,
        registry: CollectorRegistry | None,
        notify: Callable[[Status, JournalState], None],
        scheme: str,
        among: AmongRuns | None = None,
    ) -> None:
        self.settings, self.log, self.published = settings, log, Published({})
        self._environ, self._node, self._decision = environ, node, decision
        self._clock, self._scheme, self._among = clock, scheme, among
        self._deliveries = start_deliveries(settings, log, node)
        self.exporter = Exporter(registry, sinks=partial(statuses, self._deliveries))
        self._uploads = start_uploads(settings, self._deliveries, log)
        details = DetailsReader(
            state_storage(settings),
            settings.run_dir,
            log_of=lambda closed: failed_worker_log(closed, self.daemon.worker_log),
        )
        self.archive = ArchiveReader(details)
        self._publisher = Publisher(
            published=self.published,
            exporter=self.exporter,
            notify=notify,
            deliver=[*(delivery.update for delivery in self._deliveries), self.archive.update],
            delivered=partial(all_delivered, self._deliveries) if self._deliveries else None,
            facts={
                "checkpoint_dir": place_of(settings.checkpoint_dir),
                "page_links": settings.page_links,
                "best_metric": settings.best_metric,
                **({} if among is None else {"all_runs": "/"}),
            },
            log_of=details.log_of,
        )

    def begin(self, post: Callable[[Message], None]) -> Daemon:
        """Return a new daemon of the run, whose storage thread has not started. `post` receives its messages."""
        self.daemon = daemon_from_settings(
            self.settings,
            self._environ,
            node=self._node,
            decision=self._decision,
            post=post,
            clock=self._clock,
            log=self.log,
            publisher=self._publisher,
            scheme=self._scheme,
            among=self._among,
        )
        if not self.published.status:  # it never lacks a field
            self.published.status = self._publisher.document(self.daemon.status(), self.daemon.state.history)
        return self.daemon

    def start_storage(self) -> None:
        """Start the storage thread of the newest daemon."""
        assert isinstance(self.daemon.storage_thread, StorageThread)
        self.daemon.storage_thread.start()

    def close_storage(self) -> None:
        """Let the storage thread of the newest daemon finish its last request, for a moment."""
        assert isinstance(self.daemon.storage_thread, StorageThread)
        self.daemon.storage_thread.close(_CLOSE_SECONDS)

    def close_sinks(self) -> None:
        """Give the sinks their time to take the last results, unless they had it."""
        seconds = self.settings.sink_timeout_seconds
        waited = self.daemon.shutdown.ended is not None
        close(self._deliveries, 0.0 if waited else seconds)
        for upload in self._uploads:
            upload.close(seconds)
