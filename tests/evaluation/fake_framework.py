"""A framework that computes nothing, and ranks that meet in this process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sidecar.evaluation import reduction
from sidecar.evaluation.backend import Rows, Stream
from sidecar.evaluation.eval_loop import EXAMPLES
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.output_comparison import no_outputs, summary
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.states import ExactSum
from sidecar.protocol.messages import Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member, Value


def at_once(call, count, seconds):
    """Call a function with each number below `count`, in a thread each, and wait for the ends: each for so long."""
    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)


@dataclass
class FakeEvaluator:
    """Counts the examples of its own batches, and their sum."""

    streams: tuple
    numbers: list
    path: str | None = None
    variables: str = "values"
    metrics: str = "sum"
    traces: int = 1
    builds: int = 1
    raises: dict = field(default_factory=dict)
    predicts: bool = False
    first: int | None = None
    evaluated: int | None = None
    held: dict = field(default_factory=dict)
    rounds: int = 0
    again: int = 0
    outputs_are_new: bool = False
    predicted: tuple = ()
    loads_graphs: ClassVar[bool] = False
    weights_bytes: int = 6
    gpu_bytes: int = 0

    def differs(self, changed):
        """Return whether files of the data have `changed`; the data have no other signs."""
        return changed

    def outside(self):
        """Return the digests of everything outside the variables, as the test gave them."""
        return self.held

    def outputs(self):
        """Return the stream of one set."""
        found = no_outputs()
        found[0] = summary([np.array(self.predicted, "float32")])
        return found

    def _maybe(self, what):
        if what in self.raises:
            raise self.raises[what]

    def read(self, tick, evaluated, most=None):
        """Read three batches, and return the streams."""
        self.evaluated, self.most = evaluated, most
        self._maybe("read")
        for _ in range(3):
            tick()
        return self.streams

    def restore(self, path):
        """Note the path, and return a function that restores it."""
        self.path = path
        return lambda: self._maybe("restore")

    def digest(self):
        """Return a digest of the values."""
        return lambda: self.variables

    def layout(self):
        """Return numbers of the states below."""
        return self.metrics

    def evaluate(self, tick, keep, resumption):  # noqa: ARG002 - nothing is kept
        """One batch of all its numbers."""
        self._maybe("evaluate")
        states = {EXAMPLES: ExactSum((), "int64"), "sum": ExactSum((), "float64")}
        states[EXAMPLES].add(np.int64(len(self.numbers)))
        states["sum"].add_each(np.array(self.numbers, "float64"))
        if self.predicts:
            rows = np.array(self.numbers, "float64")
            keep("test", Rows(self.first, len(rows), {"predictions": rows, "positive": rows > 0}))
        tick()
        return {"test": states}

    def restored_model(self):
        """Stand for what was restored."""
        return self.path

    def begins_again(self, reduced):
        """As often as it is told to."""
        assert reduced.keys() == {"test"}
        self.rounds += 1
        return self.rounds <= self.again

    def save_weights(self, folder):
        """Write a file of weights, unless saving is to fail."""
        self._maybe("save")
        (folder / "weights").write_text(self.variables)

    def compute(self, reduced):
        """Return the sum as the one metric, with values for few and for many classes."""
        self._maybe("conclude")
        number = float(reduced["test"]["sum"].round())
        total = Value(value=number, hex=number.hex())
        few, many = ({str(number): total for number in range(count)} for count in (50, 51))
        return {"test": MetricResult({"sum": total}, {"few": few, "many": many}, notes=("a sum",))}


class Meeting:
    """A collective of threads."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=20)
        self.given = [None] * size

    def rank(self, rank):
        """Return what that rank holds of it."""
        meeting = self

        class Rank:
            def begin(self, command):
                """Begin an evaluation, which needs no preparation."""

            def reduce(self, join, report):
                """Reduce the packs of all ranks by the sum below."""
                return reduction.reduce_packs(self.sum, join, report)

            def sum(self, mine):
                """Wait for the arrays of all ranks, and return their sum."""
                meeting.given[rank] = mine
                meeting.barrier.wait()
                total = np.sum(meeting.given, axis=0)
                meeting.barrier.wait()
                return total

        return Rank()


STREAM = Stream(eval_set="test", fingerprint="abc", batches=3, examples=5, own_batches=1)

PARTS = [[0.1, 0.2], [0.3], [1e300, -1e300]]


def run(tmp_path, evaluators, **differing):
    """Each rank's Done, error, phases and progress; `differing` are lists of what each rank is told."""
    size = len(evaluators)
    members = tuple(Member(rank, f"node-{rank}", f"w.{rank}", f"h:{rank}") for rank in range(size))
    meeting, found = Meeting(size), [None] * size

    def one(rank):
        told = {name: values[rank] for name, values in differing.items()}
        command = Evaluate(
            plan=told.get("plan", 7),
            checkpoint=Checkpoint(name="ckpt-1", digest=told.get("checkpoint", "digest"), step=1, format="tf"),
            path=f"/c/{rank}",
            save_to=str(tmp_path / "evaluations" / "c" / "plan-7" / f"worker-{rank}-of-{size}"),
            save_weights=told.get("save_weights", "all"),
            progress_seconds=told.get("progress_seconds", 0.0),
            evaluated=told.get("evaluated", 0),
            attempt=told.get("attempt", 1),
        )
        phases, reports = [], []
        try:
            end = RankEvaluation(
                command=command,
                join=Join(
                    group="g", members=members, rank=rank, task="t", framework="tensorflow", search_path="/", threads=1
                ),
                collective=meeting.rank(rank),
                evaluator=evaluators[rank],
                task_digest=told.get("task", "task"),
                profile=told.get("profile", {"isa": "avx"}),
                enter=phases.append,
                report=reports.append,
                goals=told.get("goals", {}),
                code=lambda: told.get("code", "code"),
                in_parallel=ThreadPoolExecutor(1),
            ).run()
        except Exception as error:  # noqa: BLE001 - told to the test
            end = error
        found[rank] = (end, phases, reports)

    at_once(one, size, 30)
    return found


def ranks(parts=PARTS, streams=(STREAM,), **changes):
    return [FakeEvaluator(streams, part, **changes) for part in parts]


def plan_folder(tmp_path):
    return tmp_path / "evaluations" / "c" / "plan-7"


class FakeBackend:
    """Forms groups of one, and builds what it was given."""

    version = "1"
    out_of_memory = ()

    def __init__(self, evaluator):
        self.evaluator = evaluator

    def join(self, join):
        """Return the rank's part of a meeting of all members of the group."""
        return Meeting(len(join.members)).rank(join.rank)

    def build(self, *_):
        """Return the evaluator that the test gave."""
        return self.evaluator

    def profile(self, _):
        """Return an empty numeric profile."""
        return {}


def join_of(tmp_path, task="a_task.py:task"):
    return Join(
        group="g",
        members=(Member(0, "n", "w", "h:1"),),
        rank=0,
        task=task,
        framework="tensorflow",
        search_path=str(tmp_path),
        threads=1,
    )


def evaluation_of(tmp_path):
    return Evaluate(
        plan=3,
        checkpoint=Checkpoint(name="c", digest="d", step=1, format="tf"),
        path="/c",
        save_to=str(tmp_path / "s"),
        save_weights="none",
        progress_seconds=9,
    )
