"""Put the parts of a daemon together. The product, the tests and the simulator build their daemons here.

This module starts nothing and knows no settings: `commands.bootstrap` makes the arguments from the settings.

Six parts hold what changes: `DaemonState` (the knowledge of the run), `StorageSchedule` (times of requests),
`StorageHealth` (the open request and failures of storage), `Shutdown` (the end), `Retention` (saves) and `PlanRunner`
(this node's part in the open plan). Each of them alone assigns its fields; the others call its methods.
`ResponseObserver`, `RequestBuilder` and `Daemon`, the loop, hold nothing: they pass on what happens.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.checkpoint_tracker import CheckpointTracker, ScanSelection
from sidecar.daemon.known_nodes import KnownNodes
from sidecar.daemon.loop import Daemon, StorageRequests
from sidecar.daemon.lost_checkpoints import LostCheckpoints
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.request_builder import RecordBuilder, RequestBuilder
from sidecar.daemon.response_observer import JournalLog, ResponseObserver
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.storage_health import StorageHealth
from sidecar.daemon.storage_schedule import StorageSchedule
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.worker_turn import Turn, WorkerTurn
from sidecar.daemon.workers.command_specs import EvaluateSpec
from sidecar.policy.node_identity import Identity
from sidecar.policy.rules import Rules
from sidecar.publishing.status import Status
from sidecar.retention.saves.retention import Retention
from sidecar.system.clock import Clock


def build_daemon(
    *,
    identity: Identity,
    rules: Rules,
    timing: Timing,
    start_new: bool,
    vanished_after_seconds: float,
    evaluate: EvaluateSpec,
    run_dir: Path,
    retention: Retention,
    storage_thread: StorageRequests,
    supervisor: WorkerSupervisor | None,
    clock: Clock,
    log: JournalLog,
    publish: Callable[[Status, JournalState], None],
    delivered: Callable[[], bool] | None = None,
    new_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    load: Callable[[], float | None] = lambda: None,
    snapshot_plans: int = 200,
    turn: Turn | None = None,
    supervisor_of: Callable[[str], WorkerSupervisor | None] = lambda _: None,
) -> Daemon:
    """Return a daemon with all its parts.

    `start_new`: whether checkpoints from before the first start do not count. `supervisor`: None on a chief.
    `delivered`: returns whether the sinks have everything; None if there are no sinks. `turn`: when this run may have
    worker processes, among other runs of this process.
    """
    storage_health = StorageHealth(
        answered_at=clock.now(), timeout_seconds=timing.storage_timeout_seconds, beat_seconds=timing.beat_seconds
    )
    shutdown = Shutdown(
        drain_seconds=timing.drain_seconds,
        beat_seconds=timing.beat_seconds,
        storage_seconds=timing.storage_timeout_seconds,
        sinks_seconds=0.0 if delivered is None else timing.sink_timeout_seconds,
    )
    state = DaemonState(
        identity=identity,
        shutdown=shutdown,
        started=supervisor is None,
        groups=rules.groups,
        nodes=KnownNodes(node=identity.node, lease_seconds=timing.lease_seconds),
        tracker=CheckpointTracker(
            choices=ScanSelection(rules.selection), lost=LostCheckpoints(vanished_after_seconds), start_new=start_new
        ),
    )
    schedule = StorageSchedule(timing=timing)
    runner = PlanRunner(
        state=state,
        supervisor=supervisor,
        schedule=schedule,
        shutdown=shutdown,
        evaluate=evaluate,
        run_dir=run_dir,
        timing=timing,
    )
    responses = ResponseObserver(
        rules=rules,
        timing=timing,
        state=state,
        retention=retention,
        supervisor=supervisor,
        schedule=schedule,
        runner=runner,
        storage_health=storage_health,
        shutdown=shutdown,
        clock=clock,
        log=log,
        warnings=OperatorWarnings(log=log),
    )
    requests = RequestBuilder(
        rules=rules,
        snapshot_plans=snapshot_plans,
        state=state,
        retention=retention,
        supervisor=supervisor,
        records=RecordBuilder(state=state, clock=clock, new_nonce=new_nonce),
        runner=runner,
        schedule=schedule,
        shutdown=shutdown,
        log=log,
        delivered=delivered or (lambda: True),
        load=load,
    )
    return Daemon(
        timing=timing,
        state=state,
        supervisor=supervisor,
        requests=requests,
        responses=responses,
        runner=runner,
        schedule=schedule,
        shutdown=shutdown,
        storage_health=storage_health,
        storage_thread=storage_thread,
        clock=clock,
        log=log,
        publish=publish,
        turn=None
        if turn is None or supervisor is None
        else WorkerTurn(turn=turn, supervisor=supervisor, supervisor_of=supervisor_of),
    )
