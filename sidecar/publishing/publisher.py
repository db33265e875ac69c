"""Publish the status and the journal of a daemon as log lines, gauges, the status page and messages to systemd.

The daemon's loop calls `Publisher` and `DaemonLog`, which `commands.bootstrap` builds. Nothing is decided here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.coordination.journal_state import Closed, Entry, JournalState
from sidecar.coordination.totals import Best
from sidecar.protocol.records import Plan
from sidecar.publishing.failures import newest_failure
from sidecar.publishing.log import entry_logged
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.report import status_json
from sidecar.publishing.status import Status
from sidecar.system.event_log import EventLog


@dataclass(slots=True)
class Published:
    """Hold the values that HTTP threads read. The loop replaces a value as a whole and never changes it in place."""

    status: dict[str, Any]
    unready: str | None = "starting"


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Pass the status of the loop to systemd, to the gauges and to the status page, at each turn of the loop."""

    published: Published
    exporter: Exporter
    notify: Callable[[Status, JournalState], None]
    deliver: Sequence[Callable[[Status, JournalState], None]] = ()  # to sinks; none of them waits
    delivered: Callable[[], bool] | None = None  # whether the sinks have everything; None: there are none
    last: tuple[Status, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the page shows of the settings
    log_of: Callable[[Closed], str | None] = lambda _: None  # the log of a worker of this node, for a failed plan

    def __call__(self, status: Status, history: JournalState) -> None:
        """Notify systemd that the loop turned. Update gauges, status page and sinks if anything changed."""
        self.notify(status, history)
        if self.last == (status, history.log.count):
            return
        self.last = status, history.log.count
        self.exporter.update(status, history)
        self.published.unready = status.unready
        self.published.status = self.document(status, history)
        for note in self.deliver:
            note(status, history)

    def document(self, status: Status, history: JournalState) -> dict[str, Any]:
        """Return the content of /api/status."""
        document = {**status_json(status, history), **self.facts}
        if (failed := newest_failure(history)) is not None:
            document["failing"] |= {"log": self.log_of(failed)}
        return document


@dataclass(frozen=True, slots=True)
class DaemonLog:
    """Log the events of the loop by name, and one canonical line for each record of the journal.

    `worker_log` returns the log of a worker process of this node; None: the worker ran on another node.
    """

    log: EventLog
    worker_log: Callable[[str], Path | None] = lambda _: None

    def info(self, event: str, **fields: object) -> None:
        """Log an event."""
        self.log.info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that may need somebody's attention."""
        self.log.warning(event, **fields)

    def entry(self, entry: Entry | Plan, best: Mapping[tuple[str, str], Best]) -> None:
        """Log a record of the journal. `best`: the best evaluation so far, by eval set and metric."""
        entry_logged(self.log, entry, best, partial(failed_worker_log, worker_log=self.worker_log))


def failed_worker_log(closed: Closed, worker_log: Callable[[str], Path | None]) -> str | None:
    """Return the log of the worker that failed; if it ran on another node, the log of a worker of this node."""
    members = closed.plan.members or ()
    ranks = sorted(members, key=lambda member: member.rank != closed.outcome.rank)
    logs = (worker_log(member.worker) for member in ranks)
    return next((str(path) for path in logs if path is not None), None)
