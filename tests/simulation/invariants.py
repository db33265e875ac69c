"""Check facts after every step. Each invariant is a sentence in `INVARIANTS`; `Referee` is told of every effect.

It keeps its own book of the journal, read from the bytes that stand on the disk, and shares no code with the daemon but
the parser of records: rules that are wrong in the daemon must not be wrong here in the same way.
"""

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field, replace

from records import make_plan

from sidecar.coordination.journal_records import decode_plan
from sidecar.errors import NodeNameTakenError, RunReplacedError, SidecarError, StorageError, StorageLostError
from sidecar.protocol.codec import loads
from sidecar.protocol.records import Outcome, Plan, group_id
from sidecar.protocol.states import FAILURE_CLASSES
from simulation.disk import digest_of, quality
from simulation.faults import FOR_GOOD
from simulation.promises import PROMISES, Promises
from simulation.storage import plain

INVARIANTS = {
    "journal never changes": "what stands under a name of the journal stays, byte for byte: one plan, one outcome",
    "journal is linear": "plan N+1 appears when plan N stands there, and its outcome if it has members",
    "segments hold the journal": "a segment is created once, holds the records of its plans byte for "
    "byte, follows the one before, has as many plans as all have, and as many closed plans follow as must stay files",
    "moved before removed": "a single file of the journal goes only once a durable segment holds its bytes",
    "runs do not mix": "no record of one run appears in the state directory of another",
    "one success per checkpoint": "for one name and digest one plan succeeds, and one more each time that a person "
    "asked for it again after that",
    "settled is not planned again": "no plan is opened for a checkpoint that the journal before it has settled",
    "nothing is mixed": "all ranks of a success said the same plan, checkpoint, values, code, task and profile; they "
    "are the workers of that plan in its order",
    "no chief evaluates": "no process of a daemon that is the chief is in a plan that succeeds",
    "known chiefs are not listed": "a proposer lists no node whose newest heartbeat, as read by it, says chief",
    "one group in a life": "a worker process is listed with the same group always, and joins once",
    "spent workers are not listed": "a worker that stood in a failed plan stands in no later one",
    "attempts are counted": "a plan's attempt is one more than the failures of that checkpoint and task before it",
    "verdicts are earned": "failed: after as many attempts or losses as the proposer allows; corrupt, vanished: it is, "
    "or the proposer's own node finds it so, or two nodes, one of them in an attempt, or as many attempts",
    "saves are durable": "when a success appears, every rank's saves are on disk, durable, by that rank, and in the "
    "bucket if the state is; they stay",
    "pins stay": "a pin goes only when its checkpoint is settled for the tasks of all nodes that are there",
    "the best are exported": "a daemon lets no export or pin go whose checkpoint is among the best ones that are to be "
    "exported; after faults stopped none of them is pinned instead, and nothing else is exported",
    "shown is in the journal": "what a daemon shows is in the journal, record by record, when it is shown",
    "waits are bounded": "no worker hangs, and no plan is open, for longer than its bound under a daemon that turns "
    "and may close it",
    "the dead are noticed": "a plan that lists a process that is gone is closed within three leases and a turn of each "
    "by any node that turns and reaches the storage",
    "daemons end for a reason": "a daemon ends only by SIGTERM, by losing its storage or its run, by a namesake, or as "
    "what ends the run has come and all is settled: then with 1 if something failed for good; a chief settles nothing",
    "daemons do not crash": "neither loop nor storage thread raises",
    "one daemon per name": "of two daemons under one name at most one is left some beats after faults stopped",
    "all is settled": "after faults stopped, all complete checkpoints end settled, within a stated time, unless no "
    "node that evaluates can ever read it",
    "all end": "when what ends the run has come and all is settled, every daemon that evaluates ends",
    "no plan stays open": "after faults stopped, no plan is open when all is settled",
    "outcomes name their plan": "an outcome has the nonce of its plan, if it has one, and its result that plan's group",
    **PROMISES,
}


_SLOWEST_BATCH = 25.0  # seconds: of a worker that was stopped meanwhile


@dataclass(slots=True)
class Book:
    """The journal of one run as it stands on the disk."""

    plans: dict[int, Plan] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)  # of each worker ever listed
    spent: dict[str, int] = field(default_factory=dict)  # the failed plan each stood in
    succeeded: dict[tuple[str, str], int] = field(default_factory=dict)  # and not asked for again since
    successes: list[Plan] = field(default_factory=list)  # all of them
    settled: dict[tuple[str, str], list] = field(default_factory=dict)  # settlements other than successes
    before_start: set[tuple[str, str]] = field(default_factory=set)  # there before the start, with start=new
    failures: dict[tuple[str, str], list] = field(default_factory=dict)  # (task, outcome)

    @property
    def open(self) -> Plan | None:
        """The plan without an outcome, if it needs one."""
        plan = self.plans.get(len(self.plans))
        return plan if plan is not None and plan.members is not None and plan.plan not in self.outcomes else None

    def is_settled(self, key: tuple[str, str], task: str | None) -> bool:
        """Return whether a plan for it under that task would be one too many."""
        final = (each.verdict != "failed" or each.task in (None, task) for each in self.settled.get(key, ()))
        return key in self.succeeded or any(final)

    def add(self, record: Plan | Outcome) -> None:
        """Take a record in."""
        if isinstance(record, Plan):
            self.plans[record.plan] = record
            for each in record.settles:
                if each.verdict == "requeued":
                    for known in (self.succeeded, self.settled, self.failures):
                        known.pop(each.key, None)
                else:
                    self.settled.setdefault(each.key, []).append(each)
                    self.before_start |= {each.key} if "before the start" in each.reason else set()
            for member in record.members or ():
                self.groups.setdefault(member.worker, group_id(record.members or ()))
            return
        self.outcomes[record.plan] = record
        plan = self.plans[record.plan]
        assert plan.checkpoint is not None
        if record.status == "succeeded":
            self.succeeded[plan.checkpoint.key] = plan.plan
            self.successes.append(plan)
        else:
            self.failures.setdefault(plan.checkpoint.key, []).append((plan.task, record))
            for member in plan.members or ():
                self.spent.setdefault(member.worker, plan.plan)


class Referee:
    """Judges what happens; the first violation ends the simulation."""

    def __init__(self, simulation) -> None:
        self._simulation = simulation
        self.checked: Counter[str] = Counter()
        self.book = Book()
        self.run: str | None = None
        self.corrupt: dict[tuple[str, str], set[str]] = {}  # where checkpoints went bad, ever; *: everywhere
        self.gone: set[tuple[str, str]] = set()  # that were deleted, ever
        self.pinned_since: dict[tuple[str, str], float] = {}
        self._stood: dict[str, bytes] = {}  # under each name of the journal when it appeared
        self._segments: dict[str, dict[str, bytes]] = {}  # by its name: what it holds, by the names of single files
        self._moved: set[str] = set()  # names of single files that are in segments, and were removed
        # names that had been durable: when they were lost, and what they held. The book keeps them
        self._purged: dict[str, tuple[float, bytes | None]] = {}
        self.wiped_at = float("-inf")  # when the state directory was deleted
        self.newest_schema = 1  # of records in the journal
        self.promises = Promises(simulation, self)

    def check(self, invariant: str, holds: bool, message="") -> None:
        """Count it, and stop everything if it does not hold; `message` may be a function."""
        self.checked[invariant] += 1
        if not holds:
            self._simulation.violate(invariant, message() if callable(message) else message)

    # -- the journal --------------------------------------------------------------------------------------------------

    def appeared(self, path: str, data: bytes, life) -> None:
        """A name stands on the disk that was not there."""
        if path in self._moved:
            self._simulation.counts["late creations"] += 1
            return
        purged_at, _ = self._purged.get(path, (float("-inf"), None))
        if life.asked_at <= purged_at:  # it was about to write it, and had looked before
            self._simulation.disk.drop(path)  # whoever purges old names purges this one, too
            return
        self._stood[path] = data
        self._purged.pop(path, None)
        if path.startswith("segments/"):
            self._segmented(path, data, life)
            return
        self.newest_schema = max(self.newest_schema, 1 if plain(data) == data else 2)
        if path == "run.json":
            self.run = data.decode().split('"run":"')[1].split('"')[0]
        elif path.startswith("plans/"):
            self._planned(self._read(Plan, path, data), life)
        elif path.startswith("outcomes/"):
            self._closed(self._read(Outcome, path, data), life)

    def _read(self, kind: type[Plan | Outcome], path: str, data: bytes) -> Plan | Outcome:
        """Return a record as the book holds it: a forged plan does nothing, and a forged outcome is a failure."""
        number = int(path[-17:-5])
        if self._simulation.forged.get(path) != data:
            if kind is Plan:
                return decode_plan(plain(data), number, None)
            found, plan = loads(Outcome, plain(data)), self.book.plans.get(number)
            if plan is not None and plan.schema > 1 and found.result is not None and not found.result.saves:
                return replace(found, result=replace(found.result, saves=plan.saves))
            return found
        if kind is Plan:
            return make_plan(
                number,
                None,
                run=self.run or "",
                nonce="forged",
                attempt=0,
                members=None,
                task=None,
                proposer="",
                proposed_at="",
            )
        return Outcome(
            plan=number,
            run=self.run or "",
            nonce="forged",
            status="failed",
            closed_by="",
            completed_at="",
            kind="void",
        )

    def replaced(self, path: str, before: bytes | None, data: bytes, life) -> None:
        """Another write than a creation."""
        if path == "plans/000000000001.json" and data.startswith(b'{"moved_to":'):
            if before is not None and not before.startswith(b'{"moved_to":'):
                self.removed(path, before, life)
            return
        self.check("journal never changes", before is None or before == data, lambda: f"{life.name} overwrote {path}")

    def _segmented(self, path: str, data: bytes, life) -> None:
        """Check a new segment against the plans and outcomes that it replaces."""
        head, *lines = gzip.decompress(data).splitlines()
        header, held = json.loads(head), {}
        for line in lines:
            record = json.loads(line)
            held[_path(Outcome if "status" in record else Plan, record["plan"])] = line
        if header["run"] != self.run:
            self.check("runs do not mix", life.asked_at <= self.wiped_at, lambda: f"{life.name} wrote {path}")
            self._simulation.disk.drop(path)  # whoever deletes the directory deletes this, too
            del self._stood[path]
            return
        first, last = header["first"], header["last"]
        before = max((int(name[-17:-5]) for each in self._segments.values() for name in each), default=0)
        segmenting, book = self._simulation.segmenting, self.book
        expected = {
            path_of: self._stood.get(path_of, self._purged.get(path_of, (0.0, None))[1])  # it may have read them before
            for kind, records in ((Plan, book.plans), (Outcome, book.outcomes))
            for number in range(first, last + 1)
            if number in records
            for path_of in (_path(kind, number),)
        }
        closed = len(book.plans) - (book.open is not None)
        self._simulation.counts["segments"] += 1
        self.check(
            "segments hold the journal",
            held == expected
            and first == before + 1
            and path == f"segments/{first:012d}.jsonl.gz"
            and segmenting is not None
            and last - first + 1 == segmenting.plans
            and last + segmenting.kept <= closed,
            lambda: f"{life.name} wrote {path} with {first} to {last} behind {before}, while {closed} were closed",
        )
        self._segments[path] = held

    def removed(self, path: str, data: bytes, life) -> None:
        """A daemon removed a name of the journal, or put the marker in its place."""
        if path in self._moved:  # a late creation
            return
        disk = self._simulation.disk
        durable = [each for each in self._segments if disk.keeps_names or each not in disk.unreturned]
        held = any(self._segments[each].get(path) == data for each in durable)
        self.check("moved before removed", held, lambda: f"{life.name} removed {path}, which no durable segment holds")
        self._moved.add(path)
        self._simulation.counts["moved"] += 1

    def is_moved(self, path: str) -> bool:
        """Return whether a name is free because a segment holds its record."""
        return path in self._moved

    def unmove(self) -> None:
        """Somebody put back all single files and removed the segments."""
        disk = self._simulation.disk
        for path in sorted(self._moved):
            disk.put(path, self._stood[path])
        for path in self._segments:
            disk.drop(path)
            self._stood.pop(path, None)
        self._moved.clear()
        self._segments.clear()

    def rewound(self, files: dict[str, bytes]) -> None:
        """Names whose creators had not yet returned are gone: the book is what is left, and what had been purged.

        A purged outcome of the last plan that is left does not count: that plan looks open, so it may be closed again.
        """
        self._stood = {path: data for path, data in self._stood.items() if path in files or path in self._moved}
        self._segments = {path: held for path, held in self._segments.items() if path in files}
        before, self.book = self.book, Book()
        kinds = (Plan, before.plans), (Outcome, before.outcomes)
        left = [number for number in before.plans if any(_path(kind, number) in self._stood for kind, _ in kinds)]
        last = max(left, default=0)
        for number in range(1, last + 1):
            for kind, records in kinds:
                path, record = _path(kind, number), records.get(number)
                if path in self._stood:
                    self.book.add(self._read(kind, path, self._stood[path]))
                elif path in self._purged and record is not None and (kind is Plan or number < last):
                    self.book.add(record)
        self.promises.rewound(self.book)

    def forget(self, path: str) -> None:
        """A name that had been durable was lost."""
        self._purged[path] = self._simulation.scheduler.now, self._stood.pop(path, None)

    def wiped(self) -> None:
        """The state directory was deleted."""
        self.book, self.run = Book(), None
        self._stood.clear()
        self._segments.clear()
        self._moved.clear()
        self._purged.clear()
        self.pinned_since.clear()
        self.wiped_at = self._simulation.scheduler.now
        self.promises.wiped()

    def _foreign(self, record: Plan | Outcome, life) -> bool:
        foreign = record.run != self.run
        forgiven = life.asked_at <= self.wiped_at  # it was about to write, and had looked before
        self.check("runs do not mix", not foreign or forgiven, lambda: f"{life.name} wrote {record}")
        if foreign and forgiven:  # whoever deleted the directory deletes this, too
            path = _path(type(record), record.plan)
            self._simulation.disk.drop(path)
            del self._stood[path]
        return foreign

    def _planned(self, plan: Plan, life) -> None:
        if self._foreign(plan, life):
            return
        book, number = self.book, plan.plan
        self.check(
            "journal is linear",
            number == len(book.plans) + 1 and book.open is None,
            lambda: f"{life.name} created plan {number} after {len(book.plans)} plans, open: {book.open}",
        )
        if plan.checkpoint is not None and plan.members is not None:
            self._listed(plan, life)
        for each in plan.settles:
            self._verdict(plan, each, life)
        self.promises.planned(plan, life)
        book.add(plan)

    def _listed(self, plan: Plan, life) -> None:
        assert plan.checkpoint is not None
        book, key, members = self.book, plan.checkpoint.key, plan.members or ()
        self.check(
            "settled is not planned again",
            not book.is_settled(key, plan.task),
            lambda: f"{life.name} planned {key[0]} again in plan {plan.plan}",
        )
        failures = sum(task == plan.task for task, _ in book.failures.get(key, ()))
        self.check(
            "attempts are counted",
            plan.attempt == failures + 1,
            lambda: f"plan {plan.plan} says attempt {plan.attempt} after {failures} failures",
        )
        group = group_id(members)
        for member in members:
            self.check(
                "spent workers are not listed",
                member.worker not in book.spent,
                lambda: f"plan {plan.plan} lists {member.worker}, which stood in a failed plan",  # noqa: B023
            )
            self.check(
                "one group in a life",
                book.groups.get(member.worker, group) == group,
                lambda: f"plan {plan.plan} lists {member.worker} in a second group",  # noqa: B023
            )

    def _verdict(self, plan: Plan, settlement, life) -> None:
        key, settings = settlement.key, life.host.spec.settings
        failures = [outcome for task, outcome in self.book.failures.get(key, ()) if task == plan.task]
        self.promises.settled(plan, settlement, failures, life)
        classes = Counter("group" if outcome.odd else FAILURE_CLASSES[outcome.kind or ""] for outcome in failures)

        if settlement.verdict == "failed":
            earned = classes["checkpoint"] >= settings.max_attempts or len(failures) >= settings.max_losses
        elif settlement.verdict == "corrupt":
            seen = self.corrupt.get(key, set())
            witnesses = self.promises.corrupt_witnesses(key, failures)
            earned = "*" in seen or life.host.name in seen or len(witnesses) > 1
            earned |= classes["corrupt"] >= settings.max_attempts
        elif settlement.verdict == "vanished":
            earned = key in self.gone
        else:
            earned = True
        self.check(
            "verdicts are earned",
            earned,
            lambda: f"plan {plan.plan} by {life.name} says {settlement} after {dict(classes)}",
        )

    def _closed(self, outcome: Outcome, life) -> None:
        if self._foreign(outcome, life):
            return
        book, plan = self.book, self.book.open
        linear = plan is not None and plan.plan == outcome.plan
        self.check("journal is linear", linear, lambda: f"{life.name} closed plan {outcome.plan}, open is {plan}")
        if not linear:
            return
        assert plan is not None
        nonce = outcome.plan_nonce  # earlier releases wrote none
        group = plan.members and group_id(plan.members)
        self.check(
            "outcomes name their plan",
            nonce in (None, plan.nonce) and (outcome.result is None or outcome.result.group == group),
            lambda: f"outcome {outcome} of {plan}",
        )
        self.promises.closed(plan, outcome, life)
        if outcome.status == "succeeded":
            self._succeeded(plan, outcome, life)
        book.add(outcome)

    def _succeeded(self, plan: Plan, outcome: Outcome, life) -> None:
        assert plan.checkpoint is not None
        assert outcome.result is not None
        key, members, result = plan.checkpoint.key, plan.members or (), outcome.result
        self.check(
            "one success per checkpoint",
            key not in self.book.succeeded,
            lambda: f"plan {plan.plan} succeeds for {key[0]}, as did plan {self.book.succeeded[key]}",
        )
        said = self._simulation.said[int(result.metrics["test"]["accuracy"].value or 0)]
        self.check(
            "nothing is mixed",
            {each.plan for each in said} == {plan.plan}
            and {each.digest for each in said} == {plan.checkpoint.digest}
            and len({each.restored for each in said}) == 1
            and {each.task for each in said} == {plan.task} == {result.task}
            and len({each.profile for each in said}) == 1
            and len({each.code for each in said}) == 1
            and [each.worker for each in said] == [member.worker for member in members]
            and result.group == group_id(members),
            lambda: f"plan {plan} by {life.name}: ranks said {said}",
        )
        chiefs = [each for each in members if self._simulation.roles[each.worker.rsplit(".", 1)[0]] == "chief"]
        self.check("no chief evaluates", not chiefs, lambda: f"plan {plan.plan} succeeded with {chiefs}")
        self._durable(plan, outcome)

    def _durable(self, plan: Plan, outcome: Outcome) -> None:
        assert outcome.result is not None
        saves = [self._simulation.disk.saves.get(folder) for folder in outcome.result.saves]
        workers, own_disks = [member.worker for member in plan.members or ()], self._simulation.scenario.bucket
        there = [each for each in saves if each is not None and each.durable]
        there = [each for each in there if not own_disks or each.uploaded_at <= self._simulation.scheduler.now]
        self.check(
            "saves are durable",
            [each.worker for each in there] == workers,
            lambda: f"plan {plan.plan} succeeds with {outcome.result.saves}: on disk are {saves}",  # type: ignore[union-attr]
        )

    # -- what daemons do ----------------------------------------------------------------------------------------------

    def proposes(self, life, plan: Plan) -> None:
        """A daemon decided to create a plan."""
        freshness = life.daemon.state.nodes.liveness
        for member in plan.members or ():
            heartbeat = freshness.heartbeat(member.node)
            self.check(
                "known chiefs are not listed",
                heartbeat is None or heartbeat.role != "chief",
                lambda: f"{life.name} lists the chief {member.node} in plan {plan.plan}",  # noqa: B023
            )

    def shown(self, life, history) -> None:
        """A daemon shows what it knows of the journal."""
        told = history.through, len(history.entries), history.open is None
        if told == life.told_history:
            return
        life.told_history = told
        book = self.book
        if life.daemon.state.run != self.run:
            return  # of a run that is gone; it ends at its next visit
        plan, newest = history.open, history.newest
        holds = history.through <= len(book.plans)
        if plan is not None:
            holds = holds and book.plans[plan.plan].nonce == plan.nonce
        if newest is not None:
            closed = book.outcomes.get(newest.plan.plan)
            holds = holds and closed is not None and closed.nonce == newest.outcome.nonce
        self.check(
            "shown is in the journal",
            holds,
            lambda: f"{life.name} shows {history.through} plans, newest {newest}; the journal has {len(book.plans)}",
        )

    def pinned(self, content) -> None:
        """Note the time at which a pin was made."""
        self.pinned_since[content.key] = self._simulation.scheduler.now

    def unexported(self, content, life) -> None:
        """A daemon removed an export."""
        self._check_let_go(content, life)

    def _check_let_go(self, content, life) -> None:
        """Return what is let go is not among the best ones, as far as this daemon has read the journal."""
        self.check(
            "the best are exported",
            not self._exported_count() or self._may_go(content, life),
            lambda: f"{life.name} let go {content.name}, which is among the best ones",
        )

    def _may_go(self, content, life) -> bool:
        """Return whether it is not among the best ones, cannot be read, or the daemon works for a run that is gone."""
        excused = content.key in self.corrupt or life.daemon.state.run != self.run
        return excused or content.key not in self._best(self._as_read_by(life))

    def _exported_count(self) -> int:
        """Return how many of the best checkpoints the daemons that run want to be exported."""
        lives = self._simulation.running_lives()
        return max((life.host.spec.settings.export_best for life in lives if life.role == "worker"), default=0)

    def _best(self, book: Book) -> list[tuple[str, str]]:
        """Return the best checkpoints, by the numbers that workers find: the first of equal ones is better.

        Only numbers of the newest task and data compete. The best one of those before them is the last.
        """
        competing: list[tuple[str, str]] = []  # in the order of their evaluations
        before, basis = None, None
        for number, plan in sorted(book.plans.items()):
            requeued = {each.key for each in plan.settles if each.verdict == "requeued"}
            competing = [key for key in competing if key not in requeued]
            before = None if before in requeued else before
            outcome = book.outcomes.get(number)
            if outcome is None or outcome.result is None or plan.checkpoint is None:
                continue
            now = plan.task, outcome.result.data["test"].fingerprint
            if now != basis and competing:
                before, competing = min(competing, key=lambda key: -quality(key[1])), []
            basis = now
            competing.append(plan.checkpoint.key)
        best = sorted(competing, key=lambda key: -quality(key[1]))[: self._exported_count()]
        return best if before is None or before in best else [*best, before]

    def wrong_exports(self) -> str | None:
        """Return which of the best ones is held and not exported, or what else is exported; None if nothing is."""
        if self._exported_count() == 0 or self.newest_schema > 1:  # some may stand by for ever
            return None
        disk, best = self._simulation.disk, self._best(self.book)
        of_this_journal = (content for content, plan in disk.exports.values() if plan in self.book.outcomes)
        others = [content.name for content in of_this_journal if content.key not in best]
        pins = [content for content in disk.pins.values() if content.key in best and content.key not in self.corrupt]
        if others:
            return f"{others} are exported, and the best are {best}"
        return f"{[content.name for content in pins]} are still pinned" if pins else None

    def unpinned(self, content, life, *, exported: bool = False) -> None:
        """A daemon let a pin go, or made an export of it."""
        if not exported:
            self._check_let_go(content, life)
        self.pinned_since.pop(content.key, None)
        book, read = self.book, self._as_read_by(life)  # a requeue that comes at that moment finds the pin gone
        lives = [other for other in self._simulation.running_lives() if other.role == "worker" and not other.terminated]
        lives = [other for other in lives if other.daemon.state.node_state == "ready"]
        tasks = {other.host.spec.task for other in lives}
        settled = all(book.is_settled(content.key, task) for task in tasks) or all(
            read.is_settled(content.key, task) for task in tasks
        )
        self.check(
            "pins stay",
            settled or life.daemon.state.run != self.run,
            lambda: f"{life.name} let go the pin of {content.name}, which is not settled for all of {sorted(tasks)}",
        )

    def tidied(self, folders, life) -> None:
        """A daemon removed what it took for left-overs."""
        kept = {f"evaluations/{plan.checkpoint.folder}/plan-{plan.plan}": plan.plan for plan in self.book.successes}
        for folder in folders:
            self.check(
                "saves are durable",
                folder not in kept or life.daemon.state.run != self.run,
                lambda: f"{life.name} removed {folder}, which a success names",  # noqa: B023
            )

    def turned(self, life) -> None:
        """A daemon's loop turned: what hangs under it must have been killed in time."""
        self.checked["daemons do not crash"] += 1
        settings, now = life.host.spec.settings, self._simulation.scheduler.now
        calm_since = max(life.began, life.host.troubled_until, self._simulation.troubled_until)
        longest = max(settings.join, settings.restore, settings.plan_cap) + 3 * settings.lease + 10.0
        for process in life.processes.values():
            if process.hung_since is not None and not process.over:
                since = max(process.hung_since, calm_since)
                bound = max(settings.join, settings.restore, settings.first_batch, settings.stall) + 5.0
                if process.phase == "evaluate":  # a stall is also a multiple of the slowest batch so far
                    bound = max(bound, settings.stall_factor * _SLOWEST_BATCH)
                self.check(
                    "waits are bounded",
                    now - since <= bound,
                    lambda: f"{process.worker} hangs since t={process.hung_since:.1f}",  # noqa: B023
                )
        plan = life.daemon.state.history.open
        stands_by = life.host.spec.schema < self.newest_schema  # it cannot read what came since
        if plan is None or stands_by or life.role != "worker":  # chiefs close none, and all nodes may have become so
            life.open_plan = None
            return
        if life.open_plan is None or life.open_plan[0] != plan.plan:
            life.open_plan = plan.plan, now
        since = max(life.open_plan[1], calm_since)
        self.check(
            "waits are bounded",
            now - since <= longest,
            lambda: f"plan {plan.plan} is open at {life.name} since t={since:.1f}",
        )
        self._dead_are_noticed(life, plan, since, now)
        self.promises.turned(life, plan)

    def _dead_are_noticed(self, life, plan: Plan, since: float, now: float) -> None:
        settings = life.host.spec.settings
        longest = 3 * settings.lease + 4 * settings.beat + 5.0
        if plan.plan in self._simulation.finished:  # those that have the result write it in turn
            longest += (len(plan.members or ()) + 1) * settings.patience
        for member in plan.members or ():
            process = self._simulation.processes[member.worker]
            if process.over:
                self.check(
                    "the dead are noticed",
                    now - max(since, process.ended_at) <= longest,
                    lambda: f"{life.name} has plan {plan.plan} open; {member.worker} ended at t={process.ended_at:.1f}",  # noqa: B023
                )

    def exited(self, life, exit_) -> None:
        """A daemon ended by itself."""
        simulation = self._simulation
        if isinstance(exit_, NodeNameTakenError):
            reason = any(
                other is not life and other.host.name == life.host.name and other.ended >= life.began
                for other in simulation.lives
            )
        elif simulation.purged and isinstance(exit_, SidecarError) and not exit_.retryable:
            reason = True  # it refuses to go on in a journal with holes
        elif isinstance(exit_, RunReplacedError):
            reason = life.daemon.state.run != self.run or self._misses_run(life)
        elif isinstance(exit_, StorageLostError):
            reason = life.daemon.state.run != self.run
        elif isinstance(exit_, StorageError):
            reason = life.daemon.state.run is None  # at the very start; the supervisor starts it again
        else:
            reason = (exit_ == 0 and life.terminated) or (isinstance(exit_, int) and self._is_over(life, exit_))
            reason |= exit_ == 0 and life.role == "chief" and self._has_come(life)  # others settle what is left
            reason |= life.daemon.state.run != self.run  # somebody deleted everything just then
            reason &= type(exit_) is not SidecarError  # a bug that says so itself
        self.check("daemons end for a reason", reason, lambda: f"{life.name} ended: {type(exit_).__name__}: {exit_}")

    def _misses_run(self, life) -> bool:
        """Return whether run.json has been absent for this node for as long as its settings allow.

        Then the run counts as deleted, as no record of it is there: a daemon that is started again joins it anew.
        """
        host, now = life.host, self._simulation.scheduler.now
        missing_until = min(now, host.wrong.get("run_missing", 0.0))
        return missing_until - host.run_missing_since >= host.spec.settings.lease and not self.book.plans

    def _is_over(self, life, code: int) -> bool:
        """Return whether what ends the run has come, all is settled, and the code says how."""
        read = self._as_read_by(life)  # what is requeued afterwards starts it again
        task, failed = life.host.spec.task, 0
        for key, ends in read.settled.items():
            lost = any(each.verdict == "corrupt" or (each.verdict == "failed" and each.task == task) for each in ends)
            failed += lost and key not in read.succeeded
        left = self.unsettled(read, life.left) or self._being_copied(read, life)
        return self._has_come(life) and not left and code == (failed > 0)

    def _being_copied(self, read: Book, life) -> list[str]:
        """Return what daemons that are well are copying, though training deleted it: it may yet be evaluated.

        A daemon that needs a newer release to read it does not wait for that. A checkpoint came too late if it was
        saved when the daemon said that the run is over, or so shortly before that there was no time to see it.
        """
        simulation = self._simulation
        now = simulation.scheduler.now
        lives = [each for each in simulation.running_lives() if each.host.daemon_troubled_until < now]
        lives = [each for each in lives if each.host.spec.schema >= self.newest_schema]  # others stand by
        well = {each.incarnation for each in lives if each.began < now - 10.0}
        copies = [(each, content) for each, (_, content, _) in simulation.disk.copies_of(life).items()]
        return [
            content.name
            for (_, incarnation), content in copies
            if incarnation in well
            and content.key not in read.succeeded
            and content.key not in read.settled
            and content.schema <= life.host.spec.schema
            and content.written_at <= life.saw_until
        ]

    def _has_come(self, life) -> bool:
        """Return whether one of the things has come that end a run, as its settings say."""
        settings, now = life.host.spec.settings, self._simulation.scheduler.now
        saved = [each.step for each in self._simulation.scenario.saves if each.at <= now and self.counts(each)]
        step, idle = settings.stop_after_step, settings.stop_idle
        if idle is not None and now >= life.moved_at + idle:
            return True
        return self._simulation.disk.done_at is not None or (step is not None and step in saved)

    def counts(self, save) -> bool:
        """Return whether what the trainer saved was not there before the start, with start=new, as the journal says."""
        return (save.name, digest_of(save.content)) not in self.book.before_start

    def _as_read_by(self, life) -> Book:
        """The journal as far as a daemon has read it, or had when it said that the run is over."""
        history, book = life.daemon.state.history, Book()
        through, is_closed = life.ended_after or (history.through, history.open is None)
        for number, plan in self.book.plans.items():
            if number <= through:
                book.add(plan)
                if (number < through or is_closed) and (outcome := self.book.outcomes.get(number)) is not None:
                    book.add(outcome)
        return book

    # -- the end ------------------------------------------------------------------------------------------------------

    def journal_stands(self) -> None:
        """Every name that appeared stands for the same bytes."""
        files = self._simulation.disk.files
        for path, data in self._stood.items():
            if path not in self._moved:
                self.check("journal never changes", files.get(path) == data, lambda: f"{path} changed")  # noqa: B023

    def unsettled(self, book: Book | None = None, there: dict | None = None, before: float = float("inf")) -> list[str]:
        """Return the checkpoints, in the directory or pinned, that are not settled; or those among these.

        Only those count that were written `before` that time.
        """
        book = self.book if book is None else book
        if there is None:
            known = min((other.host.spec.schema for other in self._simulation.running_lives()), default=1)
            lying = (each for each in self._simulation.disk.all() if each.schema <= known)
            there = {each.key: each for each in lying if each.written_at <= before and not self._is_lost(each)}
        return [f"{key[0]}@{key[1][:12]}" for key in there if key not in book.succeeded and key not in book.settled]

    def _is_lost(self, content) -> bool:
        """Return whether no node that evaluates will ever be able to read it: each says so when it ends."""
        entries = f"checkpoint:{content.name}", f"pin:{content.name}@{content.digest[:12]}"
        nodes = self._simulation.worker_nodes()
        return bool(nodes) and all(any(host.wrong.get(each) == FOR_GOOD for each in entries) for host in nodes)

    def readable(self, life) -> dict:
        """Return the checkpoints that this daemon can read now, and has had the time to see, by their keys."""
        since, seen = self.promises.there_since, self.saw_until(life)
        disk, node = self._simulation.disk, life.host.name
        there = (each for each in disk.seen_by(node) if since.get(each.key, 0.0) <= seen)
        return {each.key: each for each in there if self.promises.reads(life, each, seen)}

    def saw_until(self, life) -> float:
        """Return the time until which this daemon has had the time to see what lies there."""
        seen = self._simulation.scheduler.now - 2 * life.host.spec.settings.sweep - 1.0
        slow = life.looked_at < life.host.daemon_troubled_until  # slow storage: the answer took so long
        return min(seen, life.looked_at) if slow else seen


def _path(kind: type[Plan | Outcome], number: int) -> str:
    return f"{'plans' if kind is Plan else 'outcomes'}/{number:012d}.json"
