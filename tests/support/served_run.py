"""A run on disk, with the page that its daemon would serve: real records, real publisher, real server, no loop."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen

from prometheus_client import CollectorRegistry
from records import make_plan
from statuses import make_status

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.snapshot import RECENT
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, EvalData, Member, Outcome, Result, Value, group_id
from sidecar.publishing.evaluation_archive import ArchiveReader, DetailsReader
from sidecar.publishing.http import Server
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.publisher import Published, Publisher
from sidecar.publishing.run_list import RunState, RunSummary
from sidecar.publishing.status import NodeSummary

PHASES = {"detect": 0.4, "agree": 0.1, "join": 0.02, "restore": 0.5, "evaluate": 3.2, "reduce": 0.1, "save": 0.4}


def value(number, goal="max", *, lower=None, upper=None):
    """A number of a metric, as workers report it."""
    return Value(
        value=number if number - number == 0 else None, hex=float(number).hex(), lower=lower, upper=upper, goal=goal
    )


class ServedRun:
    """Writes records of a run, and tells its publisher of them, as a daemon does."""

    def __init__(self, folder, run="mnist", node="worker-0", nodes=("chief-0", "worker-0", "worker-1")):
        self.folder, self.run, self.node, self.nodes = folder, run, node, nodes
        self.storage = PosixStorage(folder)
        self.run_id = open_run(self.storage, 0.0)
        self.history = JournalState(log=EntryLog(keep=RECENT))
        self.published = Published({})
        self.archive = ArchiveReader(
            DetailsReader(self.storage, folder, log_of=lambda _: "/var/tmp/sidecar-logs/worker-1.7.log")
        )
        self.registry = CollectorRegistry()
        facts = {"checkpoint_dir": "/data/ckpts"}
        self.publisher = Publisher(
            published=self.published,
            exporter=Exporter(self.registry, sinks=list),
            notify=lambda *_: None,
            deliver=[self.archive.update],
            facts=facts,
            log_of=self.archive.details_reader.log_of,
        )
        self.status = {}
        for each in ("plans", "outcomes"):
            (folder / each).mkdir(parents=True, exist_ok=True)

    def plan(self, name, step, *, attempt=1, members=2, settles=(), at=None):
        """Decide on an evaluation."""
        number = self.history.through + 1
        listed = tuple(
            Member(rank, f"worker-{rank}", f"worker-{rank}.3f2a.{rank + 1}", f"10.0.0.{rank + 2}:21000")
            for rank in range(members)
        )
        checkpoint = Checkpoint(
            name=name, digest=f"{number:064x}", step=step, format="keras", step_source="name" if step else "order"
        )
        plan = make_plan(
            number,
            checkpoint,
            run=self.run_id,
            nonce=f"p{number}",
            attempt=attempt,
            members=listed,
            settles=tuple(settles),
            task="t" * 64,
            proposer="worker-0",
            proposed_at=self._time(at),
        )
        self._write(plan_path(number), plan)
        return plan

    def succeed(self, metrics, *, examples=None, at=None, data="9", **more):
        """End the open evaluation with numbers: eval set ▶ metric ▶ value."""
        plan = self.history.open
        result = Result(
            group=group_id(plan.members),
            workers=len(plan.members),
            examples=examples or dict.fromkeys(metrics, 10000),
            metrics=metrics,
            phases=PHASES,
            variables="5" * 64,
            task="t" * 64,
            profile={"cpu": "x86_64 AVX2", "tensorflow": "2.20.0", "numpy": "2.1.3"},
            saves=tuple(f"{plan.folder}/worker-{rank}-of-{len(plan.members)}" for rank in range(len(plan.members))),
            data={name: EvalData(data * 64, 157, "batches") for name in metrics},
            **more,
        )
        self._close(plan, "succeeded", at, result=result)

    def fail(self, kind="task_error", message="ValueError: no", *, at=None, **more):
        """End the open evaluation with a failure."""
        self._close(self.history.open, "failed", at, kind=kind, message=message, node="worker-1", rank=1, **more)

    def _close(self, plan, status, at, **how):
        outcome = Outcome(
            plan=plan.plan,
            run=self.run_id,
            nonce=f"o{plan.plan}",
            status=status,
            closed_by="worker-0",
            completed_at=self._time(at),
            plan_nonce=plan.nonce,
            **how,
        )
        self._write(outcome_path(plan.plan), outcome)

    def _write(self, path, record):
        (self.folder / path).write_bytes(dumps(record))
        self.history.apply(record)

    def _time(self, at):
        moment = datetime.now(UTC) if at is None else at
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def tell(self, **status):
        """Publish, as the loop does after each turn; `status` are values of `make_status`, which stay."""
        self.status |= status
        given = {
            "role": "worker",
            "role_source": "TF_CONFIG",
            "state": "ready",
            "publisher": True,
            "unready": None,
            "journal_read": True,
            "members": {"chief": 1, "ready": 2},
            "alive": tuple(
                NodeSummary(
                    node=node,
                    role="chief" if node.startswith("chief") else "worker",
                    role_source="TF_CONFIG",
                    state="ready",
                    version="1.0.0",
                    active=0 if node.startswith("chief") else 1,
                    standby=0 if node.startswith("chief") else 1,
                )
                for node in self.nodes
            ),
        }
        self.publisher(make_status(run=self.run, node=self.node, **(given | self.status)), self.history)

    def summary(self):
        """The summary of this run among several."""
        status = self.published.status
        return RunSummary(
            run=self.run, place=str(self.folder), state=RunState.SERVING, status=status, archive=self.archive
        )

    @contextmanager
    def served(self):
        """Serve the page; gives the server."""
        self.tell()
        with _started(self, status=lambda: self.published.status, archive=self.archive) as server:
            yield server


@contextmanager
def served_together(*runs):
    """Serve a page of all runs; gives the server."""
    for run in runs:
        run.tell()
    with _started(runs[0], runs=lambda: [run.summary() for run in runs]) as server:
        yield server


@contextmanager
def _started(run, **what):
    server = Server(
        "127.0.0.1",
        0,
        registry=run.registry,
        health=lambda: None,
        ready=lambda: run.published.unready,
        **what,
    )
    server.start()
    try:
        yield server
    finally:
        server.close()


def get(server, path):
    """The body of an answer."""
    with urlopen(server.url + path, timeout=240) as answer:
        return answer.read().decode()


def minutes_ago(minutes):
    """A moment in the past."""
    return datetime.now(UTC) - timedelta(minutes=minutes)
