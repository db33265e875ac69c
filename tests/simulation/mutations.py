"""Rules broken on purpose: what the simulator must catch, or it proves nothing.

Each mutation is one rule of agreement left out of the production code, or of the workers whose place the simulation
takes, and names the invariants that have to notice. Those about what users were promised are in a file of their own.
"""

import itertools
import json
from dataclasses import replace

from sidecar.coordination import beat_names, heartbeats, journal, journal_records, liveness, segments
from sidecar.coordination.checkpoint_verdicts import CheckpointVerdicts
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.exclusions import Exclusions
from sidecar.coordination.object_storage import ObjectStorage
from sidecar.daemon import state, storage_thread
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.storage_thread import CreatePlan, StorageThread
from sidecar.daemon.workers import pool
from sidecar.policy import decide, eligibility, group_formation, settlements
from sidecar.policy.actions import Wait
from sidecar.protocol.codec import from_json
from sidecar.protocol.records import Outcome, Plan
from sidecar.retention.pins.policy import PinDecision
from simulation import by_hand, workers
from simulation.bucket import SimulatedObjects
from simulation.generations import BUCKET, make
from simulation.mutation import Mutation, with_fault, with_setting
from simulation.mutations_of_promises import MUTATIONS as OF_PROMISES


def _overwrite(storage, path, data, _limit=None):
    storage.replace(path, data)
    return data


def _number_by_listing(self, run, request):
    """Take the next free number, whether or not the outcomes before it were read."""
    if not isinstance(request, CreatePlan):
        _create(self, run, request)
        return
    plan = replace(request.plan, plan=len(self.storage.names("plans")) + 1)
    run.journal._create(plan, journal.plan_path(plan.plan))
    run.read_on()


def _trust_the_call(self, run, request):
    """The create did not fail, so the record is taken for the one that stands there."""
    if not isinstance(request, CreatePlan):
        _create(self, run, request)
        return
    if not run.read_on() and run.journal.through + 1 == request.plan.plan and run.journal.open is None:
        path, is_open = journal.plan_path(request.plan.plan), request.plan.members is not None
        self.storage.create(path, journal.dumps(request.plan))
        newest = path, request.plan.nonce
        run.journal._at = journal._Place(request.plan.plan, request.plan if is_open else None, newest)
        run._records.append(request.plan)


class _UnlessFailed:
    def __init__(self, choose, failed):
        self._choose, self._failed = choose, failed

    def __getattr__(self, name):
        return getattr(self._choose, name)

    def decide(self, found):
        decision = self._choose.decide(found)
        return PinDecision(decision.pin - self._failed, decision.retain - self._failed)

    def retains(self, key):
        return self._choose.retains(key) and key not in self._failed


def _pins_of_plans(self, now):
    """A pin belongs to the plan: it goes when that failed."""
    return _UnlessFailed(_wanted(self, now), frozenset(self.history.verdicts.failures))


def _only_members_judge(plan, view, rules, now):
    if all(each.node != view.node for each in plan.members or ()):
        return Wait(why="not our plan")
    return _judge(plan, view, rules, now)


def _any_incarnation(plan, view, rules, now):
    """Return what was restarted since, here or elsewhere, is taken for the process that was listed."""
    mine = next((each.worker.split(".")[1] for each in plan.members or () if each.node == view.node), view.incarnation)
    return _judge(plan, replace(view, incarnation=mine), rules, now)


def _every_failure_counts(failures, blame):
    return len(list(failures)) if blame == "checkpoint" else _blamed(failures, blame)


def _ignore_the_condition(self, key, data):
    self.put(key, data)
    return True


def _close_and_free(self, outcome):
    closed = _close(self, outcome)
    for path in (journal.plan_path(outcome.plan), journal.outcome_path(outcome.plan)):
        self.storage.disk.drop(path)
    return closed


def _there_is_a_file(self, node, _):
    heartbeat = self.heartbeat(node)
    return heartbeat is not None and heartbeat.state != "left"


def _success_is_not_the_end(self, key, task):
    return key in self.settled and _is_settled(self, key, task)


def _enter_before_durable(self, command, said):
    folder = self.simulation.below_run(command.save_to)
    self.simulation.disk.saves[folder] = workers.Saved(self.worker)
    self._after(0.05, 0.5, lambda: setattr(self.simulation.disk.saves.get(folder), "durable", True))
    self._meet(said, lambda all_said: self._compare(command, said, all_said))


def _hear_nothing(self, command, said, _):
    self._batch(command, said, 1)


def _list_whoever_is_there(nodes, history, _most):
    """Active workers are listed in new groups as if they had never joined."""
    return group_formation._enumerate(
        (each.node, slot.worker or slot.standby, slot.address or slot.standby_address, slot.host)
        for each in nodes
        for slot in each.slots
        if (slot.worker or slot.standby) not in history.exclusions.retired_workers
    )


_create, _wanted, _judge, _blamed = (
    StorageThread._create,
    state.DaemonState.pin_policy,
    decide.judge_open_plan,
    settlements.blamed,
)
_close, _is_settled = journal.Journal.close, CheckpointVerdicts.is_settled


def _nothing(*_, **__):
    return None


_BEATS_ARE_NAMES = with_setting(reads=1.0, hears=True)


def _is_ready_whatever_its_role(heartbeat):
    return heartbeat.state == "ready"


def _remove_first(self, closed, *, dry_run=False):
    """Single files go, and then a segment is made of what was read."""
    self._segments.advance(sync=True)
    number = self._segments.end + 1
    if number + self.kept_plans <= closed:
        for path in (journal.plan_path(number), journal.outcome_path(number)):
            self.storage.remove(path)
    yield from _carry_out(self, closed, dry_run=dry_run)


def _read_single_files_first(self, path_of, number):
    found = self.storage.read(path_of(number))
    return _data(self, path_of, number) if found is None or segments.is_marker(found) else found


def _look_nowhere(self, number):
    return self._segments.covers(number)


def _one_more(self):
    return len(self._plans) == self.most_plans + 1


def _keep_none(self, closed, *, dry_run):
    return _make_next(self, closed + self.kept_plans, dry_run=dry_run)


def _believe(kind):
    """Read a record without its limits and invariants."""
    return lambda data, *_: from_json(kind, json.loads(data))


def _differ(decode, kind):
    """Set a void record aside every second time only: one node does, and another does not."""
    times = itertools.count()

    def read(data, *arguments):
        found = decode(data, *arguments)
        is_void = found.kind == "void" if kind is Outcome else found.void is not None
        return _believe(kind)(data) if is_void and next(times) % 2 else found

    return read


def _overlook_void_plans(self, number):
    before, found = self._at, _read_plan(self, number)
    if found is not None and found.void is not None:
        self._at, found = before, None
    return found


def _overlook_void_outcomes(self, plan):
    before, found = self._at, _read_outcome(self, plan)
    if found is not None and found.kind == "void":
        self._at, found = before, None
    return found


_read_plan, _read_outcome = journal.Journal._read_plan, journal.Journal._read_outcome
_FORGED = tuple(by_hand.forging(make(seed)) for seed in range(1, 41))

_carry_out, _make_next, _data = Compaction.carry_out, Compaction._make_next, journal.Journal._data
_LATE = tuple(by_hand.varied(by_hand.record_is_created_late(), 20))

_IN_A_BUCKET = tuple(make(seed, BUCKET) for seed in range(1, 41))

MUTATIONS = (
    Mutation("create overwrites", ((journal, "create_and_read", _overwrite),), ("journal never changes",)),
    Mutation(
        "a store ignores the condition of a write",
        ((SimulatedObjects, "create", _ignore_the_condition), (ObjectStorage, "probe", lambda _: True)),
        ("journal never changes",),
        first=_IN_A_BUCKET,
    ),
    Mutation(
        "a success does not wait for the saves of other nodes' disks",
        ((PlanRunner, "lacks_saves", lambda _: None),),
        ("saves are durable",),
        first=_IN_A_BUCKET,
    ),
    Mutation(
        "propose without reading every outcome",
        ((StorageThread, "_create", _number_by_listing),),
        ("journal is linear", "settled is not planned again", "attempts are counted"),
    ),
    Mutation(
        "no nonce check after create", ((StorageThread, "_create", _trust_the_call),), ("shown is in the journal",)
    ),
    Mutation("pins belong to plans", ((state.DaemonState, "pin_policy", _pins_of_plans),), ("pins stay",)),
    Mutation(
        "stale incarnation accepted",
        (
            (decide, "judge_open_plan", _any_incarnation),
            (liveness.Liveness, "lost", lambda self, node, _=None: _lost(self, node)),
        ),
        ("the dead are noticed",),
        needs=lambda scenario: any(
            fault.kind in ("daemon_crash", "machine_crash") and fault.aimed and fault.length < 4.0
            for fault in scenario.faults
        ),
    ),
    Mutation(
        "a namesake goes unnoticed", ((heartbeats.Heartbeats, "_check_name", _nothing),), ("one daemon per name",)
    ),
    Mutation(
        "chief listed", ((eligibility, "is_ready", _is_ready_whatever_its_role),), ("known chiefs are not listed",)
    ),
    Mutation(
        "success before saves are durable",
        ((workers.SimulatedProcess, "_save", _enter_before_durable),),
        ("saves are durable",),
    ),
    Mutation(
        "only listed members may close a plan",
        ((decide, "judge_open_plan", _only_members_judge),),
        ("the dead are noticed",),
    ),
    Mutation(
        "a lost group is an attempt",
        ((settlements, "blamed", _every_failure_counts),),
        ("verdicts are earned", "failed is earned"),
    ),
    Mutation(
        "names of the journal are freed",
        ((journal.Journal, "close", _close_and_free),),
        ("journal is linear", "shown is in the journal", "settled is not planned again"),
    ),
    Mutation(
        "spent workers are listed again",
        ((Exclusions, "retire", _nothing),),
        ("spent workers are not listed",),
        first=tuple(by_hand.varied(by_hand.old_heartbeat_shows_a_worker_that_lost(), 20)),
    ),
    Mutation(
        "fresh by existence",
        (
            (liveness.Liveness, "fresh", _there_is_a_file),
            (liveness.Liveness, "gone_since", _nothing),
        ),
        ("the dead are noticed", "all is settled"),
    ),
    Mutation(
        "the name of a beat that stands still is a sign of life",
        (
            (beat_names, "_is_later", lambda _, known: known is not None),
            (beat_names.ListedBeat, "applied_to", lambda _, known: replace(known, beat=known.beat + 1)),
        ),
        ("the dead are noticed", "all is settled"),
        needs=_BEATS_ARE_NAMES,
    ),
    Mutation(
        "a success is planned again",
        ((CheckpointVerdicts, "is_settled", _success_is_not_the_end),),
        ("settled is not planned again",),
    ),
    Mutation(
        "a worker joins a second group",
        ((group_formation, "_standbys", _list_whoever_is_there),),
        ("one group in a life",),
    ),
    Mutation("no hello", ((workers.SimulatedProcess, "_heard", _hear_nothing),), ("nothing is mixed",)),
    Mutation(
        "the run is not checked",
        (
            (journal, "check_run", _nothing),
            (storage_thread.StorageThread, "_check_place", _nothing),
            (journal_records, "_require_place", _nothing),
        ),
        ("runs do not mix", "all is settled"),
        needs=with_fault("state_deleted"),
    ),
    Mutation(
        "bounds are not enforced",
        ((pool.WorkerPool, "overruns", lambda *_: []),),
        ("waits are bounded",),
        needs=with_fault("worker_hangs"),
    ),
    Mutation(
        "single files go before their segment is durable",
        ((Compaction, "carry_out", _remove_first),),
        ("moved before removed",),
        first=_LATE,
    ),
    Mutation(
        "no segment is looked for after a creation",
        ((journal.Journal, "_is_in_segment", _look_nowhere),),
        ("shown is in the journal", "journal is linear"),
        first=_LATE,
    ),
    Mutation(
        "a single file is preferred to a segment",
        ((journal.Journal, "_data", _read_single_files_first), (journal.Journal, "_was_moved", lambda *_: False)),
        ("shown is in the journal", "journal is linear"),
        first=_LATE,
    ),
    Mutation(
        "a segment has another number of plans",
        ((segments.SegmentWriter, "is_full", property(_one_more)),),
        ("segments hold the journal",),
        first=_LATE,
    ),
    Mutation(
        "a segment is made before plans behind it are closed",
        ((Compaction, "_make_next", _keep_none),),
        ("segments hold the journal",),
        first=_LATE,
    ),
    Mutation(
        "a forged record counts",
        ((journal, "decode_plan", _believe(Plan)), (journal, "decode_outcome", _believe(Outcome))),
        ("shown is in the journal", "all is settled"),
        first=_FORGED,
    ),
    Mutation(
        "nodes differ about a void outcome",
        ((journal, "decode_outcome", _differ(journal.decode_outcome, Outcome)),),
        ("shown is in the journal",),
        first=_FORGED,
    ),
    Mutation(
        "nodes differ about a void plan",
        ((journal, "decode_plan", _differ(journal.decode_plan, Plan)),),
        ("all is settled", "pins stay", "daemons end for a reason"),
        first=_FORGED,
    ),
    Mutation(
        "a void plan is dropped silently",
        ((journal.Journal, "_read_plan", _overlook_void_plans),),
        ("all is settled",),
        first=_FORGED,
    ),
    Mutation(
        "a void outcome is dropped silently",
        ((journal.Journal, "_read_outcome", _overlook_void_outcomes),),
        ("all is settled", "no plan stays open", "waits are bounded"),
        first=_FORGED,
    ),
    *OF_PROMISES,
)

_lost = liveness.Liveness.lost
