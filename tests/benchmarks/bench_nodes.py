"""Measure requests of many nodes to the storage, and how soon a dead node is noticed. All nodes are simulated."""

from dataclasses import dataclass, replace

from heartbeats import make_heartbeat
from table import Figure, Table

from sidecar.coordination.beat_names import beat_name
from sidecar.coordination.heartbeats import heartbeat_path, watched_nodes
from sidecar.coordination.journal_records import decode_plan, encode
from sidecar.coordination.liveness import Liveness
from sidecar.coordination.run import open_run
from sidecar.daemon.storage_thread import Joined, JoinRun, StorageThread, Sync
from sidecar.policy.rules import GroupRules
from sidecar.protocol.codec import dumps
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan, Result, Value, group_id
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult

HOW = """The daemons' own storage thread, heartbeats and liveness, with default settings, on storage in memory and a
clock moved by hand. Every node beats every 2 s; some of them also read: those that watch the nodes which die, and one
that watches none of them. Nothing is evaluated meanwhile. Operations are those of `Storage`, per node and second, and
asking for the times of the files in a folder counts as one for each file. All known: one node starts among others that
beat for long. First plan: the node whose turn it is to propose, likewise, until it may. Noticed: the seconds from the
death of a node until the first node may fail its plan, the longest of some deaths, and until the node that does not
watch it knows by itself, without having read of that failure. Record: the plan and the outcome of one evaluation by the
largest group that forms with the default of `max_workers` (64), and by one that has a worker of every node."""
COLUMNS = (
    "nodes",
    "operations",
    "reads",
    "kB",
    "all known after s",
    "first plan after s",
    "noticed after s",
    "by the last after s",
    "record kB",
    "of all nodes kB",
)
BEAT_SECONDS, LEASE_SECONDS, DEATHS_SECONDS = 2.0, 10.0, 17.0
MOST_WORKERS = GroupRules().max_workers
MOST_READ = 24  # nodes whose files are all read in each beat
LONGEST_SECONDS, COUNTED_SECONDS = 900.0, 700.0


def measure(quick):
    rows = [_row(nodes, 2 if quick else 5) for nodes in ((10, 100) if quick else (10, 100, 1_000))]
    figures = []
    for row in rows:
        figures += [
            Figure(f"operations of each of {row[0]:,} nodes", row[1], 3 if row[0] > MOST_READ else 8, unit=" a second"),
            Figure(f"first plan among {row[0]:,} nodes", row[5], 15, unit=" s"),
            Figure(f"death noticed among {row[0]:,} nodes", row[6], 15, unit=" s"),
        ]
    return Table("Many nodes: what they ask, and when a death is noticed", HOW, COLUMNS, rows, figures)


def _row(nodes, deaths):
    simulated = _Nodes(nodes)
    doomed = [simulated.names[(number + 1) * nodes // (deaths + 1)] for number in range(deaths)]
    watchers = {
        node
        for place, node in enumerate(simulated.names)
        if set(watched_nodes(simulated.names, place)) & set(doomed) and node not in doomed
    }
    other = min(set(simulated.names) - watchers - set(doomed), default=min(watchers))
    readers = [_Reader(simulated, node) for node in sorted({*watchers, other, simulated.names[0]})]
    witness = next(reader for reader in readers if reader.node == other)
    ready_after = _turn(simulated, readers, lambda: readers[0].liveness.ready_to_propose(simulated.now()))
    known_after = _turn(simulated, readers, lambda: len(witness.liveness.fresh_heartbeats(simulated.now())) == nodes)
    _turn(simulated, readers, lambda: simulated.now() > known_after + 40)
    first, last = {}, {}

    def look(until):
        for node, died_at in simulated.died.items():
            if node not in first and any(each.misses(node) for each in readers):
                first[node] = simulated.now() - died_at
            if node not in last and witness.misses(node):
                last[node] = simulated.now() - died_at
        return until()

    for number, node in enumerate(doomed):
        simulated.died[node] = died_at = simulated.now() + number * 0.37  # at no fixed time after a beat
        _turn(simulated, readers, lambda end=died_at + DEATHS_SECONDS: look(lambda: simulated.now() > end))
    _turn(simulated, readers, lambda: look(lambda: len(last) == len(first) == deaths))
    simulated.count(witness)
    begin = simulated.now()
    _turn(simulated, [witness], lambda: simulated.now() > begin + COUNTED_SECONDS)
    seconds, counted = simulated.now() - begin, simulated.counted
    return (
        nodes,
        sum(counted.operations.values()) / seconds,
        counted.operations["read"] / seconds,
        counted.bytes / seconds / 1e3,
        known_after,
        ready_after,
        max(first.values()),
        max(last.values()),
        _record_bytes(simulated.names[:MOST_WORKERS]) / 1e3,
        _record_bytes(simulated.names) / 1e3,
    )


def _turn(simulated, readers, until):
    """Let the readers read, each at its own time of a beat, until something holds; return when that was."""
    end = simulated.now() + LONGEST_SECONDS
    while True:
        for reader in readers:
            simulated.seconds += BEAT_SECONDS / len(readers)
            reader.sync()
            if until():
                return simulated.seconds
        if simulated.now() > end:
            raise TimeoutError(f"after {LONGEST_SECONDS:.0f} s of {len(simulated.names)} simulated nodes")


@dataclass
class _Counted:
    operations: dict
    bytes: int = 0


class _Nodes:
    """Storage in memory on which all nodes beat, the clock, and the count of what one of them asks."""

    def __init__(self, nodes):
        self.names = [f"worker-{number:04d}" for number in range(nodes)]
        self.died = {}
        self.seconds = 0.0
        self.files = {}
        self.counted = None
        self._beats = {heartbeat_path(node): (number, _heartbeat(node)) for number, node in enumerate(self.names)}
        self._name_starts = [
            beat_name(replace(heartbeat, beat=0), changed=1).removesuffix("0.beat")
            for _, heartbeat in self._beats.values()
        ]
        self._counts = None

    # -- clock -------------------------------------------------------------------------------------------------------

    def now(self):
        """Return the seconds of the simulated clock, as `Clock.now`."""
        return self.seconds

    def wall(self):
        """Return the seconds of the simulated clock, as `Clock.wall`."""
        return self.seconds

    # -- storage -----------------------------------------------------------------------------------------------------

    def count(self, reader):
        """Count what this reader asks from now on."""
        self._counts = reader
        if reader is not None:
            self.counted = _Counted(dict.fromkeys(("read", "write", "names", "times", "sync"), 0))

    def asked(self, reader, operation, times=1, size=0):
        """Note what a reader asked."""
        if reader is self._counts:
            self.counted.operations[operation] += times
            self.counted.bytes += size

    def read(self, path):
        """Return a file; a beat is written when it is read."""
        if path not in self._beats:
            return self.files.get(path)
        number, heartbeat = self._beats[path]
        return dumps(replace(heartbeat, beat=self._beat(number, heartbeat.node)))

    def modified(self):
        """Return when each heartbeat was written."""
        return {
            path.rpartition("/")[2]: self._written_at(number, heartbeat.node)
            for path, (number, heartbeat) in self._beats.items()
        }

    def listed(self, reader):
        """Return the names in the folder of the heartbeats: of a reader the one that it gave itself."""
        beats = [] if reader.beat_name is None else [reader.beat_name]
        if len(self.names) > MOST_READ:
            for number, node in enumerate(self.names):
                if node != reader.node:
                    beats.append(f"{self._name_starts[number]}{self._beat(number, node)}.beat")
        return [*(path.rpartition("/")[2] for path in self._beats), *beats]

    def _beat(self, number, node):
        return int(self._written_at(number, node) / BEAT_SECONDS)

    def _written_at(self, number, node):
        """Return the time of a node's newest beat; each beats at its own time."""
        phase = BEAT_SECONDS * number / len(self.names)
        until = min(self.seconds, self.died.get(node, self.seconds)) - phase
        return until // BEAT_SECONDS * BEAT_SECONDS + phase + 10 * BEAT_SECONDS


@dataclass(eq=False)
class _Storage:
    """The `Storage` of one reader."""

    nodes: _Nodes
    reader: object

    def create(self, path, data):
        """Count a write, and keep the file unless it exists."""
        self.nodes.asked(self.reader, "write", size=len(data))
        self.nodes.files.setdefault(path, data)

    def read(self, path, limit=None):
        """Count a read, and return the content up to the limit."""
        found = self.nodes.read(path)
        if found is not None and limit is not None:
            found = found[: limit + 1]
        self.nodes.asked(self.reader, "read", size=len(found or b""))
        return found

    def replace(self, path, data):
        """As `Storage.replace`; the heartbeats are those of the simulation."""
        self.nodes.asked(self.reader, "write", size=len(data))
        if path.endswith(".beat"):
            self.reader.beat_name = path.rpartition("/")[2]

    def rename(self, path, name):
        """As `Storage.rename`; only names of beats are."""
        assert path.rpartition("/")[2] == self.reader.beat_name
        self.nodes.asked(self.reader, "write", size=len(name))
        self.reader.beat_name = name
        return True

    def sync(self, _):
        """Count the synchronisation of a folder."""
        self.nodes.asked(self.reader, "sync")

    def names(self, folder):
        """As `Storage.names`; a name takes some 32 bytes more than its characters."""
        found = self.nodes.listed(self.reader) if folder == "members" else []
        self.nodes.asked(self.reader, "names", size=sum(32 + len(name) for name in found))
        return found

    def modified(self, _, names=None):
        """As `Storage.modified`; the attributes of a file take some 128 bytes."""
        found = {name: at for name, at in self.nodes.modified().items() if names is None or name in names}
        self.nodes.asked(self.reader, "times", len(found), 128 * len(found))
        return found

    def survey(self, _):
        """As `Storage.survey` of a filesystem."""

    def remove(self, _):
        """Count a write in place of the removal of a file."""
        self.nodes.asked(self.reader, "write")

    def probe(self):
        """As `Storage.probe` of a filesystem."""
        return True

    def sweep(self, *_):
        """Leave all files where they are, in place of `Storage.sweep`."""


class _NoCheckpoints:
    """A reconciler of a directory in which nothing happens, and its saves."""

    @property
    def saves(self):
        """Return this object, which has no saves either."""
        return self

    def has_no_place(self):
        """Return that pins always have a place."""
        return False

    def tidy(self, _):
        """Return an empty result, since there is nothing to clean up."""
        return CleanupResult()


class _Reader:
    """One of the nodes, which reads the others as a daemon does."""

    def __init__(self, nodes, node):
        self.node, self._nodes, self.beat_name = node, nodes, None
        self._storage = _Storage(nodes, self)
        open_run(self._storage, 0.0, checkpoint_dir=None, new_id=lambda: "r")
        self._thread = StorageThread(
            storage=self._storage, reconciler=_NoCheckpoints(), clock=nodes, post=lambda _: None
        )
        joined = self._thread.answer(JoinRun())
        assert isinstance(joined, Joined), joined.error
        self.liveness = Liveness(node, LEASE_SECONDS)
        self._beat = 0

    def sync(self):
        """Write the heartbeat and read what is due."""
        self._beat += 1
        own = replace(_heartbeat(self.node), beat=self._beat)
        response = self._thread.answer(Sync(heartbeat=own, scan=False, pin_policy=None, tidying=CleanupRequest()))
        assert response.error is None, response.error
        now = self._nodes.now()
        self.liveness.wrote(own, now)
        self.liveness.observe(response.reading, now)

    def misses(self, node):
        """Return whether this node would fail a plan that lists the other one."""
        return self.liveness.lost(node) is not None


def _heartbeat(node):
    incarnation = f"{hash(node) & (1 << 64) - 1:016x}"
    slot = Slot(
        worker=f"{node}.{incarnation}.1", group="0" * 16, address=_address(node), standby=None, standby_address=None
    )
    digests = {"version": "1.0.0", "task": "t" * 64, "profile": "p" * 64, "joined_profile": "j" * 64}
    return make_heartbeat(node=node, incarnation=incarnation, page_url=f"http://{node}:19108", slots=(slot,), **digests)


def _address(node):
    number = int(node.rpartition("-")[2])
    return f"10.20.{number // 256}.{number % 256}:21000"


def _record_bytes(names):
    """Return the length of both records of an evaluation by these nodes, as they stand in their files."""
    plan, outcome = _records(names)
    written = encode(plan, None)
    return len(written) + len(encode(outcome, decode_plan(written, plan.plan, plan.run)))


def _records(names):
    """The plan and the outcome of an evaluation by these nodes."""
    members = tuple(
        Member(rank, node, f"{node}.{hash(node) & (1 << 64) - 1:016x}.1", _address(node))
        for rank, node in enumerate(names)
    )
    checkpoint = Checkpoint(name="ckpt-1", digest="d" * 64, step=1, format="tf_object", pin="pins/ckpt-1@dddddddddddd")
    common = {"plan": 1, "run": "r" * 32, "nonce": "n" * 32}
    plan = Plan(
        **common,
        checkpoint=checkpoint,
        attempt=1,
        members=members,
        settles=(),
        task="t" * 64,
        proposer=names[0],
        proposed_at="2026-01-01T00:00:00.000Z",
    )
    result = Result(
        group=group_id(members),
        workers=len(members),
        examples={"test": 10_000},
        metrics={"test": {"accuracy": Value(value=0.5, hex=(0.5).hex(), goal="max")}},
        phases=dict.fromkeys(("detect", "restore", "evaluate"), 0.1),
        variables="v" * 64,
        task="t" * 64,
        profile={"tensorflow": "2.21.0"},
        saves=plan.saves,
    )
    outcome = Outcome(
        **common, status="succeeded", closed_by=names[0], completed_at="2026-01-01T00:00:01.000Z", result=result
    )
    return plan, outcome
