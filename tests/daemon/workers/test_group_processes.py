"""Groups of real worker processes on one machine: the same bits, warm between checkpoints, gone when they must go."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest
from processes import gone

from sidecar.commands.one_shot import OneShot, evaluate_once, result_of
from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.errors import EvaluationFailedError
from sidecar.evaluation.states import ExactSum, MinMax
from sidecar.protocol.messages import Check, Checked, Done, Failed
from sidecar.protocol.records import Checkpoint

pytestmark = [pytest.mark.takes_turns(3), pytest.mark.tensorflow]

TF_CONFIG = '{"cluster": {"chief": ["10.0.0.1:1"], "worker": ["10.0.0.2:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.fixture(scope="module")
def trio(worker_group):
    """Three workers in one group, started in the environment of a training process, which trust stored graphs."""
    made = worker_group(3, environment={"TF_CONFIG": TF_CONFIG, "MASTER_ADDR": "10.0.0.1", "RANK": "3"})
    made.joined = made.form("noisy", options={"trust_saved_graph": True})
    return made


@pytest.fixture(scope="module")
def evaluated(trio, trained):
    """Three checkpoints one after the other in the same three processes: each rank's report of each."""
    kinds = ("model", "later", "model")
    return [trio.evaluate(trained.path(kind), plans=[plan] * 3) for plan, kind in enumerate(kinds, start=1)]


@pytest.fixture(scope="module")
def single(worker_group):
    """One worker that has joined no group yet."""
    made = worker_group(1)
    made.start()
    return made


def logs(trio):
    return [(trio.folder / "logs" / f"{member.worker}.log").read_text() for member in trio.members]


def once(made, trained, task, *, show=lambda _: None, **changes):
    """One evaluation as `sidecar eval` does it."""
    checkpoint = Checkpoint(name="ckpt-1", digest="digest", step=1, format="tf")
    command = OneShot(
        task=made.task_spec(task, **changes),
        checkpoint=checkpoint,
        path=trained.path("model"),
        save_to=made.folder / "saves",
        plan_cap_seconds=120,
    )
    return evaluate_once(command, made.workers, made.inbox, show=show)


def test_ranks_hold_the_same_result(trio, evaluated, trained):
    """All ranks end with the same numbers, which are those of a plain evaluation; one has no batch of the small set."""
    for done in evaluated:
        assert [type(each) for each in done] == [Done] * 3
        assert [each.rank for each in done] == [0, 1, 2]
        assert done[0].result == done[1].result == done[2].result
    first, expected = evaluated[0][0].result, trained.expected["model"]
    assert first.examples == {"test": expected["count"], "few": 33}
    assert first.metrics["test"]["accuracy"].value == expected["correct"] / expected["count"]
    assert first.metrics["test"]["loss"].value == pytest.approx(expected["loss"], rel=1e-6)
    assert first.workers == 3
    assert first.group == trio.joined[0].group
    assert set(first.phases) == {"restore", "evaluate", "save", "reduce"}


def test_warm_between_checkpoints(evaluated, trained):
    """The second and third checkpoint need no new trace and no new model, and are other results."""
    assert [(each.traces, each.builds) for done in evaluated for each in done] == [(1, 1)] * 9
    first, later, again = (done[0].result for done in evaluated)
    assert first.metrics == again.metrics != later.metrics
    assert first.variables == again.variables != later.variables
    expected = trained.expected["later"]
    assert later.metrics["test"]["accuracy"].value == expected["correct"] / expected["count"]


def has_the_bits_of(done, evaluated):
    result, other = result_of(done), evaluated[0][0].result
    assert result.metrics == other.metrics
    assert result.variables == other.variables
    assert result.examples == other.examples


@pytest.mark.nightly
@pytest.mark.parametrize("size", [1, 2])
def test_any_number_of_workers_gives_the_same_bits(worker_group, trained, evaluated, size):
    """1 process without a cluster, and 2, find the bits of 3."""
    done = once(worker_group(size), trained, "task")
    has_the_bits_of(done, evaluated)
    assert [each.rank for each in done] == list(range(size))


def test_environment_of_the_training_job_does_not_leak(trio):
    """The task's module sees no TF_CONFIG, no commands on its input; what it prints is in the log, not in the pipe."""
    for log in logs(trio):
        assert "the user's own words" in log
        assert "TF_CONFIG is None and the input holds ''" in log


def test_workers_serve_on_reserved_ports(trio, evaluated):
    """The port that the daemon holds is the one that the worker listens on; a stranger cannot have it."""
    assert evaluated
    for member in trio.members:
        port = int(member.address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


def test_workers_are_gentle(trio):
    """Niced, and the first to go when memory is short."""
    for worker in trio.workers.all():
        process = psutil.Process(worker.process.pid)
        assert process.nice() >= 10
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
        autogroup = Path(f"/proc/{process.pid}/autogroup")  # where there is one, niceness counts only within it
        assert not autogroup.exists() or autogroup.read_text().split()[1:] == ["nice", "10"]


def test_every_worker_saves_to_its_own_path(trio, evaluated, trained, digits):
    """Each rank's weights restore to the published digest, and all ranks' states merge to the published result."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    result = evaluated[0][0].result
    evaluator = KerasEvaluator.build(digits.task(), Shard(0, 1), threads=2, cache_bytes=0)
    merged = {}
    for rank in range(3):
        folder = trio.folder / "plan-1" / f"worker-{rank}-of-3"
        tf.train.Checkpoint(model=evaluator.model).read(str(folder / "weights")).assert_existing_objects_matched()
        assert evaluator.digest()() == result.variables
        saved = json.loads((folder / "states.json").read_text())
        assert saved["variables"] == result.variables
        for name, states in saved["states"].items():
            for state, content in states.items():
                kind = ExactSum if content["reduction"] == "sum" else MinMax
                merged.setdefault(name, {}).setdefault(state, []).append(kind.from_json(content))
    for by_name in merged.values():
        for state, (total, *others) in by_name.items():
            for other in others:
                total.merge(other)
            by_name[state] = total
    assert {name: each.values for name, each in evaluator.compute(merged).items()} == result.metrics
    assert {name: int(states["examples"].integers()) for name, states in merged.items()} == result.examples
    assert trained.expected["model"]["count"] == result.examples["test"]


def test_a_stored_graph_between_two_checkpoints(trio, evaluated, trained, digits):
    """A SavedModel that Keras exported is loaded and traced once more; the model is as warm afterwards as before."""
    import tensorflow as tf

    assert digits.HELD_OUT
    done = trio.evaluate(str(trained.folder / "exported"), plans=[4] * 3)
    again = trio.evaluate(trained.path("model"), plans=[5] * 3)
    assert [(each.traces, each.builds) for each in (*done, *again)] == [(2, 2)] * 6
    assert again[0].result.metrics == evaluated[0][0].result.metrics
    assert done[0].result == done[1].result == done[2].result
    result, of_model = done[0].result, evaluated[0][0].result
    assert result.metrics["test"]["accuracy"] == of_model.metrics["test"]["accuracy"]
    assert result.metrics["test"]["loss"].value < of_model.metrics["test"]["loss"].value, "without regularisation"
    assert result.profile == of_model.profile
    assert result.profile["trust_saved_graph"] == "true"
    loaded = tf.saved_model.load(str(trained.folder / "exported"))
    saved = str(trio.folder / "plan-4" / "worker-1-of-3" / "weights")
    tf.train.Checkpoint(model=loaded).read(saved).assert_consumed()


def test_hello_refuses_what_differs(trio, evaluated, trained):
    """Ranks that were told different plans or checkpoints, or restored different values, stop before they evaluate."""
    assert evaluated
    path, other = trained.path("model"), trained.path("later")
    for told, words in (
        ({"plans": [8, 9, 8]}, "ranks are not in the same plan (plan)"),
        ({"digests": ["a", "b", "a"]}, "ranks received different checkpoints (checkpoint)"),
    ):
        for failed in trio.evaluate(path, **told):
            assert (failed.kind, failed.phase) == ("mismatch", "hello")
            assert f"{words}: rank 0 on node, rank 2 on node against rank 1 on node" in failed.message
    for failed in trio.evaluate(path, other, path):
        assert failed.kind == "mismatch"
        assert "ranks restored different values from the same checkpoint (variables)" in failed.message
    done = trio.evaluate(path, plans=[10] * 3)
    assert done[0].result.metrics == evaluated[0][0].result.metrics


def test_failure_of_one_rank_does_not_end_the_process(trio, trained):
    """A checkpoint that is gone is a report; whoever supervises decides what becomes of the processes."""
    for failed in trio.evaluate(trained.path("nowhere"), plans=[11] * 3):
        assert (failed.kind, failed.phase, failed.plan) == ("vanished", "restore", 11)


def test_killed_worker_takes_its_children_along(trio):
    """SIGKILL of a worker is told as Exited; what the user's code had started is gone. Last: the trio is dead now."""
    children = [int(re.search(r"^child (\d+)$", log, re.MULTILINE).group(1)) for log in logs(trio)]
    assert all(psutil.pid_exists(pid) for pid in children)
    first, *others = (trio.workers.find(member.worker) for member in trio.members)
    os.kill(first.process.pid, signal.SIGKILL)
    (exited,) = trio.collect(Exited, count=1)
    assert exited.status == -signal.SIGKILL
    assert "the worker process was killed by SIGKILL; its log ends: " in str(exited)
    assert trio.workers.find(first.worker) is None
    assert gone(children[0])
    for other in others:
        trio.workers.kill(other)
    trio.collect(Exited, count=2)
    assert all(gone(child) for child in children[1:])
    assert list(trio.workers.all()) == []


@pytest.mark.nightly
def test_users_exception_on_one_rank(worker_group, trained):
    """One rank's user code raises: its traceback is the reason, whatever its peers lose by it, and all are killed."""
    made = worker_group(2)
    pids = []
    with pytest.raises(EvaluationFailedError) as caught:
        once(made, trained, "broken_on_last_rank", show=lambda statuses: pids.extend(each.pid for each in statuses))
    message = str(caught.value)
    assert message.startswith("task_error (rank 1, evaluate): ")
    assert "ValueError: the image of example 64 is unreadable" in message
    assert "digits.py" in message
    assert "sidecar/evaluation" not in message
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert list(made.workers.all()) == []


@pytest.mark.nightly
def test_worker_whose_data_hang(worker_group, trained):
    """User code that hangs is noticed by its bound, since nothing else would ever tell."""
    made = worker_group(
        1,
        bounds=PhaseTimeouts(
            yield_seconds=300,
            join_timeout_seconds=120,
            restore_timeout_seconds=120,
            first_batch_timeout_seconds=120,
            stall_seconds=1,
            stall_factor=5,
            suspended_timeout_seconds=10,
        ),
    )
    with pytest.raises(EvaluationFailedError, match=r"^stalled.*\bread\b") as caught:
        once(made, trained, "hanging")
    assert "s allowed" in str(caught.value)


def test_standby_checks_tasks(single):
    """A worker that joined no group says whether a task can be used; what is wrong with it is no reason to end."""
    (worker,) = single.start()
    told = []
    directory = single.workers.engine.launch.directory
    for name in ("digits.py:task", "digits.py:nothing", "digits.py:leaving", "script_with_options.py:task"):
        worker.process.send(Check(task=name, framework="tensorflow", search_path=directory, threads=1))
        told += single.collect(Checked, Failed, count=1)
    good, missing, leaving, script_with_options = told
    assert script_with_options.eval_sets == ("test", "few")
    assert good.eval_sets == ("test", "few")
    assert missing.kind == "task_error"
    assert "digits.py has no 'nothing'; it defines BATCH, EvalSet" in missing.message
    assert leaving.kind == "task_error"
    assert "SystemExit: nothing to do" in leaving.message


def test_one_worker_in_a_cluster_of_its_own(single, evaluated, trained):
    """It finds the bits of the three; it may have checked tasks before it joined."""
    single.form("task", options={"always_cluster": True})
    done = single.evaluate(trained.path("model"))
    has_the_bits_of(done, evaluated)
    assert [each.rank for each in done] == [0]
