"""Strike a host or the shared disk with each kind of fault. Lengths are seconds; values are in [0, 1)."""

import errno
import json
from collections.abc import Callable
from dataclasses import asdict, replace

from records import make_plan

from sidecar.coordination import journal, snapshot_store
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.daemon.events import FilesChanged
from sidecar.protocol.records import Member, Outcome, Result, Settlement, Value, group_id
from sidecar.protocol.states import Verdict
from simulation.scenario import FAILURES, LINGERS

EVERYWHERE = frozenset(
    {"all_replaced", "all_storage_hangs", "rewind", "state_deleted", "state_away", "names_lost", "state_restored"}
)
BORNE = frozenset(
    {"forged", "reads_go_back", "moved_away", "leftover", "requeue", "wall_step"}
)  # they excuse no daemon
FOR_GOOD = float("inf")


def heal(host) -> None:
    """Nothing is wrong with this host any more."""
    now = host.simulation.scheduler.now
    host.stopped_until = host.workers_stopped_until = host.cut_off_until = host.hangs_until = now
    host.slowness, host.stale_for = 1.0, 0.0
    host.loses_replies = host.imports_fail = host.lies = False
    host.stop_before_create = host.stop_after_create = 0.0
    host.aimed_at_workers.clear()
    host.wrong = {what: until for what, until in host.wrong.items() if until == FOR_GOOD}
    host.pins_late = 0.0
    host.simulation.away_until = now
    host.simulation.rewinds_after_create = 0.0


def _later(simulation, fault, do: Callable[[], None]) -> None:
    simulation.scheduler.at(simulation.scheduler.now + fault.length, do)


def _daemon_crash(simulation, host, fault) -> None:
    if host.runs:
        host.life.end(leaves_writes=fault.value < 0.5)
        _later(simulation, fault, host.start)


def _machine_crash(simulation, host, fault) -> None:
    if not host.runs:
        return
    workers = {process.worker for process in host.life.processes.values()}
    host.life.end(leaves_writes=fault.value < 0.3)
    simulation.disk.rewind(simulation.random, sorted(host.replaced & simulation.disk.unsynced.keys()), workers)
    host.cache.clear()
    host.listings.clear()
    host.replaced.clear()
    _later(simulation, fault, host.start)


def _machine_gone(_, host, __) -> None:
    """It crashes and never comes back."""
    if sum(other.runs and other.role == "worker" for other in host.simulation.hosts) > host.spec.settings.min_workers:
        _take_away(host)


def _take_away(host) -> None:
    """With its disk, where it has its pins if the state is in a bucket: what nobody else has is lost."""
    disk, promises = host.simulation.disk, host.simulation.referee.promises
    host.gone = True
    if host.runs:
        host.life.end()
    if disk.keeps_names:
        disk.pins_of(host.name).clear()
        promises.excused |= promises.there.keys() - {each.key for each in disk.all()}


def _all_replaced(simulation, *_) -> None:
    """All machines are taken away for good, and others come, under other names: as pods do."""
    for host in [each for each in simulation.hosts if not each.gone]:
        _take_away(host)
        if host.role == "worker":
            number = len(simulation.hosts)  # no machine and no daemon of one ever has the name of another
            spec = replace(host.spec, key=f"m{number}", name=f"machine-{number}", role="worker")
            second = simulation.add(spec, "worker")
            simulation.scheduler.at(simulation.scheduler.now + 1.0 + 5.0 * simulation.random.random(), second.start)


def _daemon_stop(simulation, host, fault) -> None:
    simulation.stop_daemon(host, fault.length)


def _assign(host, name, value):
    """Return an action that gives an attribute of a host a value."""
    return lambda: setattr(host, name, value)


def _stop_before_create(simulation, host, fault) -> None:
    host.stop_before_create = fault.length
    simulation.scheduler.at(simulation.scheduler.now + LINGERS, _assign(host, "stop_before_create", 0.0))


def _stop_after_create(simulation, host, fault) -> None:
    host.stop_after_create = fault.length
    simulation.scheduler.at(simulation.scheduler.now + LINGERS, _assign(host, "stop_after_create", 0.0))


def _machine_stop(simulation, host, fault) -> None:
    """Suspended: daemon and workers; the boot clock goes on."""
    simulation.stop_daemon(host, fault.length, "with its workers")
    host.workers_stopped_until = host.stopped_until


def _cut_off(simulation, host, fault) -> None:
    host.cut_off_until = simulation.scheduler.now + fault.length


def _storage_hangs(simulation, host, fault) -> None:
    host.hangs_until = simulation.scheduler.now + fault.length


def _all_storage_hangs(simulation, _, fault) -> None:
    simulation.hangs_until = simulation.scheduler.now + fault.length


def _slow(simulation, host, fault) -> None:
    host.slowness = 3.0 + 40.0 * fault.value
    _later(simulation, fault, _assign(host, "slowness", 1.0))


def _stale_reads(simulation, host, fault) -> None:
    host.stale_for = min(60.0, 1.0 + fault.value * 70.0)
    host.cache.clear()
    host.listings.clear()

    def fresh() -> None:
        host.stale_for = 0.0

    _later(simulation, fault, fresh)


def _lost_replies(simulation, host, fault) -> None:
    host.loses_replies = True
    _later(simulation, fault, _assign(host, "loses_replies", False))


def _rewind(simulation, _, fault) -> None:
    """The storage crashes; if it is aimed, after the next record became visible and before it was made durable."""
    if fault.aimed:
        simulation.rewinds_after_create = fault.value
    else:
        rewind(simulation)


def rewind(simulation) -> None:
    """The storage comes back with what it had made durable."""
    disk = simulation.disk
    gone = disk.rewind(simulation.random, sorted(disk.unsynced.keys() | disk.unreturned), None)
    simulation.note(lambda: f"the storage comes back without {gone or 'what was replaced lately'}")
    if gone:
        simulation.referee.rewound(disk.files)


def _wall_step(_, host, fault) -> None:
    host.wall_offset += (fault.value - 0.5) * 7200.0


def _second_daemon(simulation, host, _) -> None:
    """Somebody starts another daemon under the same name, on another machine."""
    spec = replace(host.spec, key=f"{host.spec.key}b", boot_offset=host.spec.boot_offset + 777.0)
    if all(other.spec.key != spec.key for other in simulation.hosts):
        simulation.add(spec, host.role).start()


def _some_process(host, fault):
    if not host.runs or host.life.daemon.supervisor is None:
        return None
    workers = host.life.daemon.supervisor.workers
    there = [each for each in host.life.processes.values() if not each.over and not workers.is_probe(each.worker)]
    busy = [each for each in there if each.join is not None]
    chosen = busy if busy and fault.value < 0.8 else there
    return chosen[int(fault.value * 97) % len(chosen)] if chosen else None


def _to_a_worker(_, host, fault) -> None:
    """It befalls a worker process: the next one that works, in the middle of it, or one that happens to be there."""
    if fault.aimed:
        host.aimed_at_workers.append(fault)
    elif (process := _some_process(host, fault)) is not None:
        befall(process, fault)


def befall(process, fault) -> None:
    """Return what faults of workers do to one."""
    if fault.kind == "worker_dies":
        process.end(-9 if fault.value < 0.6 else 1)
    elif fault.kind == "worker_hangs":
        process.hangs = True
    elif fault.kind == "worker_fails":
        process.fail(FAILURES[int(fault.value * 89) % len(FAILURES)])
    else:
        process.stopped_until = process.simulation.scheduler.now + fault.length


def _workers_cannot_start(simulation, host, fault) -> None:
    host.imports_fail = True
    _later(simulation, fault, _assign(host, "imports_fail", False))


def _worker_lies(simulation, host, fault) -> None:
    host.lies = True
    _later(simulation, fault, _assign(host, "lies", False))


def _some_checkpoint(simulation, fault):
    names = list(simulation.disk.checkpoints)
    return names[int(fault.value * 83) % len(names)] if names else None


def _checkpoint_deleted(simulation, _, fault) -> None:
    name = _some_checkpoint(simulation, fault)
    if name is None:
        return
    content = simulation.disk.checkpoints.pop(name)
    simulation.referee.gone.add(content.key)
    if fault.value < 0.3:  # and somebody deletes the pin, too
        for folder in [folder for folder, pin in simulation.disk.pins.items() if pin.key == content.key]:
            simulation.referee.promises.excused.add(content.key)
            simulation.disk.unpin([folder])
    simulation.note(lambda: f"{name} is deleted")


def _corrupt(simulation, host, fault) -> None:
    name = _some_checkpoint(simulation, fault)
    if name is not None:
        content = simulation.disk.checkpoints[name]
        keys = {content.key} | {pin.key for pin in simulation.disk.pins.values() if pin.name == name}
        node = host.name if fault.kind == "corrupt_on_one" else None
        for key in keys:
            simulation.referee.corrupt.setdefault(key, set()).add(node or "*")
        simulation.disk.spoil(name, node)
        simulation.note(lambda: f"{name} goes bad")


def _restored_wrong(simulation, host, fault) -> None:
    name = _some_checkpoint(simulation, fault)
    if name is not None:
        simulation.disk.mislead(name, host.name)


def _sigterm(simulation, host, fault) -> None:
    if host.runs:
        host.life.terminate()
        simulation.scheduler.at(simulation.scheduler.now + fault.length, host.start)


def _state_deleted(simulation, *_) -> None:
    simulation.disk.wipe()
    for host in simulation.hosts:
        host.cache.clear()
        host.listings.clear()
    simulation.referee.wiped()


def _becomes_chief(simulation, host, fault) -> None:
    """The job was started anew with this node as its chief."""
    host.role = "chief" if host.role == "worker" else "worker"
    _daemon_crash(simulation, host, fault)


def _requeue(simulation, host, fault) -> None:
    """A person asks again for what was given up, or else was evaluated, as `sidecar requeue`: while no plan is open."""
    book, disk = simulation.referee.book, simulation.disk
    there = {each.key: each for each in disk.all()}
    given_up = [key for key in book.settled if key in there and key not in book.succeeded]
    ended = given_up or [key for key in book.succeeded if key in there]
    if not ended or book.open is not None or simulation.referee.run is None or host.life is None:
        return
    simulation.counts["evaluations asked for again"] += not given_up
    content = there[ended[int(fault.value * 79) % len(ended)]]
    name, digest = content.key
    settles = (Settlement(name=name, digest=digest, step=content.step, verdict=Verdict.REQUEUED, reason="by a person"),)
    number = len(book.plans) + 1
    plan = make_plan(
        number,
        None,
        run=simulation.referee.run,
        nonce=f"person-{fault.number}",
        attempt=0,
        members=None,
        settles=settles,
        task=None,
        proposer="person",
    )
    path, data = plan_path(number), journal.dumps(plan)
    disk.put(path, data)
    simulation.appeared(path, data, host.life)


def _forged(simulation, host, fault) -> None:
    """Another user of the group writes a record that breaks a limit or an invariant, and would do harm if it counted.

    It ends the open plan, or else it is the next one.
    """
    book = simulation.referee.book
    if simulation.referee.run is None or host.life is None:
        return
    opened, nonce = book.open, f"forged-{fault.number}"
    if opened is None:
        there = tuple(
            Settlement(
                name=each.name,
                digest=each.key[1],
                step=each.step,
                verdict=Verdict.SKIPPED,
                reason="x" * 5000 if fault.value < 0.7 else "unwanted",  # 4,096 characters are the most
            )
            for each in simulation.disk.all()
        )
        plan = make_plan(
            len(book.plans) + 1,
            None,
            run=simulation.referee.run,
            nonce=nonce,
            attempt=0,
            members=() if fault.value < 0.5 else (Member(7, "n", "w", "h:1"),),  # ranks count up from 0
            settles=there if fault.value >= 0.5 or there else (),
            task=None,
            proposer="nobody" if there else "x" * 5000,
        )
        path, data = plan_path(plan.plan), _uncut(plan)
    else:
        number = simulation.note_result(())
        accuracy = Value(value=float(number), hex=float(number).hex(), goal="max")
        result = Result(
            group=group_id(opened.members or ()),
            workers=len(opened.members or ()) + (fault.value < 0.3),
            examples={} if fault.value < 0.6 else {"test": 1},  # each eval set has a number of examples
            metrics={"test": {"accuracy": accuracy}},
            phases={},
            variables="v" if fault.value < 0.6 else "v" * 5000,
            task=opened.task or "",
            profile={},
            saves=(),
        )
        outcome = Outcome(
            plan=opened.plan,
            run=opened.run,
            nonce=nonce,
            status="succeeded",
            closed_by="nobody",
            completed_at="now",
            result=result,
        )
        path, data = outcome_path(opened.plan), _uncut(outcome)
    if path in simulation.disk.files or simulation.referee.is_moved(path):
        return
    simulation.forged[path] = data
    simulation.counts["forged records"] += 1
    simulation.disk.put(path, data)
    simulation.appeared(path, data, host.life)


def _uncut(record) -> bytes:
    """Return a record with texts of any length."""
    return json.dumps(asdict(record) | ({"schema": 1})).encode()


def _upgrade(simulation, host, fault) -> None:
    """Somebody stops the daemon, installs another release, and starts it; or goes back to the former one."""
    scenario = simulation.scenario
    if host.gone or host not in simulation.hosts[: len(scenario.upgraded)]:
        return
    number = simulation.hosts.index(host)
    spec = scenario.upgraded[number]
    if host.spec.kind == spec.kind:
        spec = scenario.nodes[number]
    if host.runs:
        host.life.terminate()

    def start() -> None:
        if host.runs:
            host.life.end()
        host.spec = replace(spec, key=host.spec.key)
        host.start()

    _later(simulation, fault, start)


def _links_broken(simulation, host, fault) -> None:
    """For good: nobody heals a firewall. Groups do not form, or get stuck in the middle."""
    other = next((each for each in simulation.hosts if each is not host), None)
    if other is not None:
        simulation.broken_links[frozenset((host.name, other.name))] = 0 if fault.value < 0.6 else 1


# -- errors about one entry, or one kind of operation ------------------------------------------------------------------


def _goes_wrong(simulation, host, fault, what: str, longest: float = FOR_GOOD) -> None:
    host.wrong[what] = simulation.scheduler.now + min(fault.length, longest)
    simulation.note(lambda: f"on {host.name}: {what}")


def _one_entry(simulation, host, fault, what: str) -> None:
    """For a while, or for good where others can do without this node."""
    _goes_wrong(simulation, host, fault, what)
    others = [each for each in simulation.hosts if each.spec == replace(host.spec, **_own(each.spec)) and not each.gone]
    if fault.value > 0.9 and len(others) > 2 and host.spec.settings.min_workers == 1:
        host.wrong[what] = FOR_GOOD


def _own(spec) -> dict:
    """Return in what nodes differ that are configured alike."""
    names = "key name role replicas standby starts_at boot_offset wall_offset chief_has_workers"
    return {name: getattr(spec, name) for name in names.split()}


def _pin_unreadable(simulation, host, fault) -> None:
    folders = list(simulation.disk.pins)
    if folders:
        _one_entry(simulation, host, fault, f"pin:{folders[int(fault.value * 83) % len(folders)]}")


def _checkpoint_unreadable(simulation, host, fault) -> None:
    if (name := _some_checkpoint(simulation, fault)) is not None:
        _one_entry(simulation, host, fault, f"checkpoint:{name}")


def _file_hangs(simulation, host, fault) -> None:
    if (name := _some_checkpoint(simulation, fault)) is not None:
        _goes_wrong(simulation, host, fault, f"hangs:{name}")


def _heartbeat_unreadable(simulation, host, fault) -> None:
    names = [name for name in simulation.disk.names("members") if name != f"{host.name}.json"]
    if names:
        name = names[int(fault.value * 83) % len(names)]
        for each in [host] if fault.value < 0.5 else simulation.hosts:
            if name != f"{each.name}.json":
                _goes_wrong(simulation, each, fault, f"members/{name}")
                each.troubled_until = max(each.troubled_until, simulation.scheduler.now + fault.length + LINGERS)
                each.daemon_troubled_until = each.troubled_until


def _snapshot_unreadable(simulation, host, fault) -> None:
    _goes_wrong(simulation, host, fault, snapshot_store.PATH)


def _kind_of_operation(simulation, host, fault) -> None:
    host.full_with = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)[int(fault.value * 97) % 3]
    _goes_wrong(simulation, host, fault, fault.kind)


def _short_reads(simulation, host, fault) -> None:
    """For no longer than what is written takes to be seen."""
    _goes_wrong(simulation, host, fault, fault.kind, 0.5 * host.spec.settings.visibility)


def _run_missing(simulation, host, fault) -> None:
    if not host.is_wrong(fault.kind):
        host.run_missing_since = simulation.scheduler.now
    _goes_wrong(simulation, host, fault, fault.kind, 0.5 * host.spec.settings.visibility)


def _pins_late(simulation, host, fault) -> None:
    host.pins_late = fault.value * host.spec.settings.visibility
    _later(simulation, fault, _assign(host, "pins_late", 0.0))


def _leftover(simulation, _, fault) -> None:
    """A machine was taken away while it copied: what it had copied lies there."""
    simulation.disk.leftovers[f"left {fault.number}"] = simulation.scheduler.now


def _state_away(simulation, _, fault) -> None:
    """The mount of the state directory is away; its place is empty, and nobody may write there."""
    simulation.away_until = simulation.scheduler.now + fault.length


# -- what was durable is lost ------------------------------------------------------------------------------------------


def _names_lost(simulation, _, fault) -> None:
    """A purge of old files takes plans or outcomes; never those of the newest plan: nobody could tell it from open."""
    book, disk = simulation.referee.book, simulation.disk
    numbers = [number for number in book.outcomes if number < len(book.plans)]
    if not numbers:
        return
    last = numbers[int(fault.value * 83) % len(numbers)]
    which = (plan_path,), (journal.outcome_path,), (plan_path, journal.outcome_path)
    for number in range(1, last + 1) if fault.aimed else [last]:
        for path in which[int(fault.value * 79) % 3]:
            if not simulation.referee.is_moved(path(number)):  # the purge finds no file of that name, or the marker
                disk.drop(path(number))
                simulation.referee.forget(path(number))
    simulation.purged = True
    simulation.note(lambda: f"old names are purged, up to plan {last}")


def _state_restored(simulation, _, fault) -> None:
    """Somebody stops all daemons and restores a former state of the journal; with its snapshot, or without.

    A snapshot that knows more than the journal says that something is missing, so daemons may refuse to start.
    """
    book, disk = simulation.referee.book, simulation.disk
    kept = int(fault.value * (len(book.plans) + 1))
    for host in simulation.hosts:
        if host.runs:
            host.life.end()
        host.cache.clear()
        host.listings.clear()
        simulation.scheduler.at(simulation.scheduler.now + 1.0 + 3.0 * simulation.random.random(), host.start)
    simulation.referee.unmove()
    for number in range(kept + 1, len(book.plans) + 1):
        disk.drop(plan_path(number))
        disk.drop(journal.outcome_path(number))
    if fault.aimed:
        disk.drop(snapshot_store.PATH)
    else:
        simulation.purged = True
    simulation.note(lambda: f"the journal is restored as of plan {kept}")
    simulation.referee.rewound(disk.files)
    simulation.referee.promises.restored()


def _reads_go_back(simulation, host, fault) -> None:
    """Two servers answer in turn, and one of them is behind: the rules must bear it, so nothing is excused by it."""
    host.wrong["reads_go_back"] = simulation.scheduler.now + fault.length


def _moved_away(simulation, _, fault) -> None:
    """Somebody moves a checkpoint away, with its pin or without, and back."""
    name = _some_checkpoint(simulation, fault)
    if name is None:
        return
    disk, content = simulation.disk, simulation.disk.checkpoints.pop(name)
    simulation.referee.gone.add(content.key)
    pins = {folder: pin for folder, pin in disk.pins.items() if pin.key == content.key and fault.value < 0.5}
    disk.unpin(pins)
    simulation.note(lambda: f"{name} is moved away")

    def back() -> None:
        if name not in disk.checkpoints:
            disk.checkpoints[name] = content
            disk.checkpoints = dict(sorted(disk.checkpoints.items(), key=lambda item: item[1].written_at))
            simulation.note(lambda: f"{name} is moved back")
            simulation.referee.promises.changed()
            simulation.tell(FilesChanged)

    _later(simulation, fault, back)


STRIKE = {
    "reads_go_back": _reads_go_back,
    "moved_away": _moved_away,
    "pin_unreadable": _pin_unreadable,
    "checkpoint_unreadable": _checkpoint_unreadable,
    "heartbeat_unreadable": _heartbeat_unreadable,
    "snapshot_unreadable": _snapshot_unreadable,
    "saves_unreadable": _kind_of_operation,
    "disk_full": _kind_of_operation,
    "reads_fail": _kind_of_operation,
    "listing_misses": _kind_of_operation,
    "pins_late": _pins_late,
    "short_reads": _short_reads,
    "run_missing": _run_missing,
    "file_hangs": _file_hangs,
    "leftover": _leftover,
    "state_away": _state_away,
    "names_lost": _names_lost,
    "state_restored": _state_restored,
    "upgrade": _upgrade,
    "links_broken": _links_broken,
    "daemon_crash": _daemon_crash,
    "machine_crash": _machine_crash,
    "machine_gone": _machine_gone,
    "all_replaced": _all_replaced,
    "daemon_stop": _daemon_stop,
    "stop_before_create": _stop_before_create,
    "stop_after_create": _stop_after_create,
    "machine_stop": _machine_stop,
    "cut_off": _cut_off,
    "storage_hangs": _storage_hangs,
    "all_storage_hangs": _all_storage_hangs,
    "slow": _slow,
    "stale_reads": _stale_reads,
    "lost_replies": _lost_replies,
    "rewind": _rewind,
    "wall_step": _wall_step,
    "second_daemon": _second_daemon,
    "worker_dies": _to_a_worker,
    "worker_hangs": _to_a_worker,
    "worker_fails": _to_a_worker,
    "worker_stops": _to_a_worker,
    "workers_cannot_start": _workers_cannot_start,
    "worker_lies": _worker_lies,
    "checkpoint_deleted": _checkpoint_deleted,
    "corrupt_everywhere": _corrupt,
    "corrupt_on_one": _corrupt,
    "restored_wrong_on_one": _restored_wrong,
    "sigterm": _sigterm,
    "state_deleted": _state_deleted,
    "becomes_chief": _becomes_chief,
    "requeue": _requeue,
    "forged": _forged,
}
