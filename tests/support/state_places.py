"""State directories of machines, and the daemons that send them to a backup on a real server."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from fakes import ListLog
from journals import Journal
from publishing.sinks.conftest import publishing, until

from sidecar.coordination.journal import Journal as StoredJournal
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import group_id
from sidecar.publishing.state_backup.ownership import open_backup
from sidecar.publishing.state_backup.sender import StateBackup
from sidecar.system.object_store import ObjectStoreRules

RULES = ObjectStoreRules(bucket_timeout_seconds=5)
MOST_SECONDS = 240


@dataclass
class Place:
    """A state directory of one machine, and what its daemon does."""

    folder: Path
    url: str
    log: ListLog = field(default_factory=ListLog)
    started: list = field(default_factory=list)

    @property
    def run_dir(self):
        """Return the state directory of the run."""
        return self.folder / "mnist"

    @property
    def storage(self):
        """Return the files of the run."""
        return PosixStorage(self.run_dir)

    def evaluate(self, *steps, saves=1):
        """Write evaluations into the journal, with the saves of a worker before each outcome."""
        run = open_run(self.storage, 0.0)
        stored, journal = StoredJournal(self.storage, run), Journal(run)
        for record in stored.read_to_end():
            journal.history.apply(record)
        for step in steps:
            journal.evaluate(f"ckpt-{step}", step)
            plan, outcome = journal.history.entries[-1].plan, journal.history.entries[-1].outcome
            outcome = replace(outcome, result=replace(outcome.result, group=group_id(plan.members)))
            assert stored.propose(plan)
            stored.read_new()
            for number in range(saves):
                path = f"evaluations/{plan.checkpoint.folder}/plan-{plan.plan}/worker-0-of-1/part-{number} {step}.bin"
                self.storage.replace(path, b"%d" % step)
            assert stored.close(outcome)
            stored.read_new()
        return journal.history

    def daemon(self, store=None):
        """Begin to send, as a daemon of this machine does."""
        store = store or open_backup(self.url, "mnist", RULES)
        backup = StateBackup(store, self.run_dir, self.url, "worker-0", self.log)
        backup.start()
        self.started.append(backup)
        return backup

    def send(self, *steps, **how):
        """Evaluate, send everything, and end the daemon."""
        history, backup = self.evaluate(*steps, **how), self.daemon()
        backup.update(publishing(), history)
        until(lambda: backup.has_delivered or backup.status.failing)
        status = backup.status
        self.end()
        return status

    def end(self):
        """End the daemons."""
        for backup in self.started:
            backup.end()
            assert backup.join(time.monotonic() + MOST_SECONDS)
        self.started.clear()

    def files(self):
        """Return the content of all files, by path, without what belongs to one copy of a state directory."""
        found = {path.relative_to(self.run_dir).as_posix(): path for path in self.run_dir.rglob("*") if path.is_file()}
        return {path: found[path].read_bytes() for path in found if path != "state_backup.json"}
