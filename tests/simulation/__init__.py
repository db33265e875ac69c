"""The deterministic simulator: real daemons that agree through a storage on which everything that can go wrong does.

    make simulate SEEDS=1-50000           run many on all cores: a table, and exit code 1 on a violation
    make simulate SEEDS=4711              run one; of a violation the shortest history found, and how to replay it
    make simulate SEEDS=4711 FAULTS=2,5 NODES=0,1 CHECKPOINTS=0        replay exactly that part; `-` means none of them
    make simulate SEEDS=4711 ARGS=--history                            tell what happened, whether or not it was wrong
    make simulate SEEDS=1:49144                                        a seed of the first generation of scenarios
    make simulate SEEDS=1-50000 ARGS="--shard 2/5 --progress done.bin"  one of five parts; started again, it goes on

Real, as it runs in production: `sidecar.policy`, `sidecar.coordination`, the daemon with its loop, state, executions,
worker supervisor and storage thread, `pins.reconciler`, `artifacts.retention` and `workers.pool`. Fake: time, storage
(`disk`, `storage`), worker processes (`workers`), the checkpoint directory and the pins in it. `scenario` says what a
seed decides, `faults` what each kind of fault does, `node` how a daemon is put together, `simulation` lets it happen.

Modelled, not real: what the catalog and the pinner tell of folders (`checkpoints`): reading real files in each look
would take too long. An error about one entry is told there as `found.Look` says: what was known stays known, and is in
`unknown`. That the product's own folders do so is shown by their tests, on real files.

Everything is an event on one line of time (`scheduler`), in one thread. A storage thread is a greenlet that gives way
at each operation on storage, so that others act, and faults fall, between any two operations of a request. One seed
decides all of it: no wall clock, no thread, no order of a set or hash takes part; a test compares two processes.

After every step `invariants.Referee` checks what must hold; its sentences are in `INVARIANTS`. It reads the journal
from the bytes on the disk and keeps its own book, so that it does not repeat the daemon's mistakes. `promises` are
about checkpoints: what lay there whole is evaluated, and each verdict, skip and attempt is earned by what really was.
When the last fault is over all machines are healed (but those that are gone for good), and within a stated time all
must be settled. `mutations` and `mutations_of_promises` break rules on purpose: each must be caught, or the simulator
proves nothing.
`regressions` are schedules that once found a bug, `by_hand` some that seeds draw too rarely. `generations` draw them:
the first is frozen, the newest has one and two nodes in a third of its schedules, nodes that differ in two things at
once, backlogs, weeks, a second training in the same directory, upgrades to releases with newer records, and calm runs.

How the fake storage fails: operations take time, error, hang, or are answered late; a create may act and raise, or not
act and raise; a write of a daemon that died may still arrive. A node may read what it has read before, absences, too,
for up to 60 s; what it wrote itself it sees. A machine that crashes may take back heartbeats that nobody made durable.
The storage may come back without names whose creators had not yet returned. On one node, reading one pin, checkpoint,
heartbeat, snapshot or all saves may fail, or hang, for a while or for good; so may all writes, or all reads. Listings
may leave out names, pins may be seen late, records may read short, run.json may be absent for a moment, the mount of
the state may be away, old names of the journal may be purged, and a former journal may be restored. A link between two
nodes may be broken for good.

Not covered: the filesystem calls of `PosixStorage`, `Catalog` and `pin` (tests of their own, on real files); what a
worker computes; stop_after_step and stop_idle, which end a run as the trainer's marker does; room on a disk; GPUs that
are released when idle; a lying rank that no digest can show. Collectives either complete or hang: they do not corrupt.
A record that a daemon creates between its look at run.json and a person's deleting the state directory is deleted by
that person, too.
"""
