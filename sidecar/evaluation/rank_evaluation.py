"""Evaluate one checkpoint on one rank: read ▶ restore ▶ hello ▶ evaluate own shard ▶ save ▶ reduce ▶ result.

The steps are the same for every framework. There are three collectives for any number of batches. The first is the
hello, in which ranks prove that they are about to evaluate the same thing. When a task runs for the first time, one
more collective compares what their models compute for a first batch. The second exchanges the digests of the restored
values, hashed in the meantime, and the rows of the metric states that are in use. The third sums these rows. A
rank enters the last two only after its own saves are durable, so the result of a sum proves that all saves are.

If an attempt before was interrupted and left finished eval sets, one more collective, before the evaluation, agrees on
those that all ranks can read: `finished_sets`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.backend import (
    TIMED,
    Collective,
    Evaluator,
    Int64s,
    RankReport,
    Reduced,
    Resumption,
    States,
    Stream,
    discard_rows,
)
from sidecar.evaluation.data import nonfinite
from sidecar.evaluation.data.reader import order_advice
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import EXAMPLES, LEFT_OUT
from sidecar.evaluation.evaluate_functions import EvaluateFunctions
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.finished_batches import DIFFERS, NOTE, FinishedBatches, differs
from sidecar.evaluation.finished_sets import FinishedSets
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.output_comparison import (
    differing,
    differing_outputs,
    named,
    short_digest,
    sides_of,
    what_differs,
)
from sidecar.evaluation.source_digest import source_digest
from sidecar.evaluation.states import SetStates, exact_sum
from sidecar.evaluation.task import MAX_EVAL_SETS
from sidecar.protocol.messages import Done, Evaluate, Join, Progress, Report, SetFinished
from sidecar.protocol.records import MOST_PARTIAL_NUMBERS, EvalData, FinishedSet, Goal, Result, Value
from sidecar.protocol.saved_weights import saving_ranks
from sidecar.protocol.states import WorkerPhase
from sidecar.system.plain_text import listed

_HELLO: Final = {
    "plan": "are not in the same plan",
    "code": "run different code of this program, because it was upgraded meanwhile",
    "checkpoint": "received different checkpoints",
    "task": "run different code of the task",
    "profile": "compute with different versions, devices or settings",
    "eval sets": "have different eval sets",
    "metrics": "have different metrics",
    "outside": "hold different vocabularies, bins, assets or settings outside the model's variables",
}
"""The values that ranks compare before they evaluate, with the complaint about a difference.

The restored variables are compared later, in the second collective, because they are hashed during the evaluation.
"""

_PROFILE_BYTES: Final = 1024
"""Limit of the bytes of a profile in the hello. Ranks can name differences within it. A usual profile has 300 bytes."""

_MAX_PARTS: Final = 4096
"""Limit of the parts of a model that are compared by their digests, if the models of the ranks differ."""

_MAX_NAMED_PARTS: Final = 5


@dataclass(slots=True, kw_only=True)
class RankEvaluation:
    """Evaluate one checkpoint together with the other ranks."""

    command: Evaluate  # the checkpoint, and where this rank saves
    join: Join  # the group
    collective: Collective  # exchanges data with the other ranks
    evaluator: Evaluator  # has the task's model and data
    task_digest: str  # digest of the task's code
    profile: dict[str, str]  # the versions, devices and settings with which this rank computes
    enter: Callable[[WorkerPhase], None]  # called with each phase that begins
    report: Callable[[Report], None]  # called with progress
    in_parallel: Executor  # writes weights during the evaluation
    now: Callable[[], float] = time.monotonic  # returns seconds of a monotonic clock
    functions: EvaluateFunctions | None = None  # the task's own functions on the model, if there are any
    goals: Mapping[str, Goal] = field(default_factory=dict)  # the goals that the task gives, by EVAL_SET/METRIC
    code: Callable[[], str] = source_digest  # returns the digest of this program's code
    # Whether a set may be reported before the others: not while a metric may prove to be no sum, which begins all again
    reports_sets: bool = False
    _seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.command.most_batches is not None:
            self.functions = None
        self.reports_sets = self.reports_sets and self.join.process == 0

    def run(self) -> Done:
        """Return the result. Raises `EvaluationError` with the kind of the failure.

        All of it is done again if it shows that a metric has to be updated in turn.
        """
        evaluator, is_to_begin_again, notes = self.evaluator, True, tuple[str, ...]()
        while is_to_begin_again:
            streams, variables, total = self._evaluate_once()
            self.enter(WorkerPhase.CONCLUDE)
            is_to_begin_again = evaluator.begins_again(total.states)
            if any(map(differs, total.states.values())):
                is_to_begin_again, notes = True, (NOTE,)
        return Done(
            plan=self.command.plan,
            rank=self.join.rank,
            result=self._result(streams, variables, total, notes),
            traces=evaluator.traces,
            builds=evaluator.builds,
            weights_bytes=evaluator.weights_bytes,
            memory_bytes=_peak_bytes(),
            gpu_bytes=evaluator.gpu_bytes,
        )

    @contextmanager
    def _phase(self, name: WorkerPhase, counted_as: str) -> Iterator[None]:
        self.enter(name)
        start = self.now()
        yield
        self._seconds[counted_as] += self.now() - start

    def _evaluate_once(self) -> tuple[Sequence[Stream], str, Reduced]:
        """Return the data as this rank read it, the digest of the restored values, and the sums of all ranks."""
        command, evaluator = self.command, self.evaluator
        self._seconds = dict.fromkeys(TIMED, 0.0)
        progress = _Progress(command, self.report, self.now)
        self.collective.begin(command)
        restored = evaluator.restore(command.path) if command.attempt == 1 else None
        with self._phase(WorkerPhase.READ, "evaluate"):
            streams = evaluator.read(progress.tick, command.evaluated, command.most_batches)
        is_known = all(stream.is_counted for stream in streams)
        progress.start_over(sum(stream.own_batches for stream in streams) if is_known else None)
        with self._phase(WorkerPhase.RESTORE, "restore"):
            (restored or evaluator.restore(command.path))()
            hashed = evaluator.digest()
            outside = evaluator.outside()
        leads = self.join.process == 0  # a follower saves nothing, and its states stay empty
        root = Path(command.save_root) if command.save_root else None
        finished = FinishedSets(
            folder=Path(command.finished_sets) if command.finished_sets and leads else None,
            root=root or Path(),
            shard=Shard(self.join.rank, len(self.join.members)),
            in_parallel=self.in_parallel,
            now=self.now,
            seconds=command.keep_batches_seconds,
        )
        with self._phase(WorkerPhase.HELLO, "reduce"):
            hello = self._hello(streams, outside)
            exist = _exchange_hello(
                self.collective, self.join, streams, hello, outside, evaluator, resumes=finished.exist()
            )
        with ArtifactWriter(Path(command.save_to), root, in_parallel=self.in_parallel) as saves:
            with self._phase(WorkerPhase.EVALUATE, "evaluate"):
                finished.begin(streams, {name: hello[name] for name in hello.keys() - {"plan"}}, hashed)
                saving = saving_ranks(
                    command.save_weights,
                    len(self.join.members),
                    evaluator.weights_bytes,
                    divided=self.join.processes > 1,
                )
                if leads:
                    saves.begin(evaluator.save_weights if self.join.rank in saving else None)
                taken, batches = self._taken(streams, finished, saves) if exist else ({}, finished.batches((), saves))
                for stream in streams:
                    for _ in range(stream.own_batches if stream.eval_set in taken else 0):
                        progress.tick()
                last = None if self.functions is not None else streams[-1].eval_set if streams else None
                keep = partial(self._keep, streams, finished, saves, last)
                states = evaluator.evaluate(
                    progress.tick,
                    saves.keep if leads else discard_rows,
                    Resumption(taken, batches, keep),
                )
                if self.functions is not None:
                    states |= self.functions.run(evaluator.restored_model(), hashed, progress.alive)
            with self._phase(WorkerPhase.SAVE, "save"):
                variables = hashed()
                origin = {"group": self.join.group, "plan": command.plan, "seconds": self._seconds}
                if leads:
                    saves.finish(states, variables, origin)
        with self._phase(WorkerPhase.adding_up(_bytes(states)), "reduce"):
            total = self.collective.reduce(self.join, RankReport(states, variables, self._seconds))
        if self.join.rank == 0 and leads:
            finished.remove()
        return streams, variables, total

    def _keep(
        self,
        streams: Sequence[Stream],
        finished: FinishedSets,
        saves: ArtifactWriter,
        last: str | None,
        eval_set: str,
        states: SetStates,
    ) -> None:
        """Keep the states of a set that was just evaluated, and report its numbers, unless it is the last one."""
        if eval_set == last:
            return
        if differs(states):
            finished.drop(eval_set)
            return
        states = {name: state for name, state in states.items() if name != DIFFERS}
        finished.keep(eval_set, states, saves)
        if self.reports_sets:
            for name, of_all in finished.of_all(eval_set, states):
                self._report_set(streams, name, of_all)

    def _report_set(self, streams: Sequence[Stream], eval_set: str, states: SetStates) -> None:
        """Report the numbers of a set. The end of the evaluation reports what is wrong, so nothing is raised here."""
        with suppress(Exception):
            (examples,) = _count(
                [stream for stream in streams if stream.eval_set == eval_set], {eval_set: states}
            ).values()
            numbers = _with_goals(eval_set, self.evaluator.compute({eval_set: states})[eval_set], self.goals).values
            few = dict(list(numbers.items())[:MOST_PARTIAL_NUMBERS])
            self.report(SetFinished(self.command.plan, FinishedSet(eval_set, examples, few)))

    def _taken(
        self, streams: Sequence[Stream], finished: FinishedSets, saves: ArtifactWriter
    ) -> tuple[dict[str, SetStates], dict[str, FinishedBatches]]:
        """Return the states of the sets that an attempt before finished, and finished batches, as all ranks agree."""
        found = np.array([finished.find(stream.eval_set, saves) for stream in streams], np.int64)
        rows = _gather(self.collective, self.join, found)
        same = {
            stream.eval_set: int(sizes[0])
            for stream, sizes in zip(streams, rows.T, strict=True)
            if sizes.all() and len(set(sizes.tolist())) == 1
        }
        agreed = [eval_set for eval_set, size in same.items() if size > 0]
        for stream in streams:
            if stream.eval_set not in same:
                saves.drop(stream.eval_set)
        for eval_set in agreed if self.reports_sets and self.join.rank == 0 else ():
            if (states := finished.taken(eval_set)) is not None:
                self._report_set(streams, eval_set, states)
        taken = {eval_set: finished.found(eval_set) if self.join.process == 0 else {} for eval_set in agreed}
        due = same.keys() - taken.keys()
        batches = finished.batches(due, saves)
        for stream in streams if self.join.processes > 1 else ():
            if stream.eval_set in due:  # followers, which read no files, run the same batches
                of_set = batches.setdefault(stream.eval_set, FinishedBatches())
                are_done = np.zeros(stream.batches, np.int64)
                are_done[list(of_set.done)] = 1
                of_set.done = frozenset(np.flatnonzero(self.collective.sum(are_done)).tolist())
        return taken, batches

    def _hello(self, streams: Sequence[Stream], outside: Mapping[str, str]) -> dict[str, str]:
        """Return what this rank is about to do, by the names in `_HELLO`."""
        return {
            "plan": str(self.command.plan),
            "code": self.code(),
            "checkpoint": self.command.checkpoint.digest,
            "task": self.task_digest,
            "profile": _lines(self.profile),
            "eval sets": repr([*(stream.eval_set for stream in streams), *self._names_of_functions]),
            "metrics": self.evaluator.layout(),
            "outside": _lines(outside),
        }

    @property
    def _names_of_functions(self) -> list[str]:
        return self.functions.names if self.functions is not None else []

    def _result(self, streams: Sequence[Stream], variables: str, total: Reduced, notes: tuple[str, ...]) -> Result:
        """Return the numbers of all ranks, with notes. Raises `count` if examples are missing."""
        examples = _count(streams, total.states)
        found_nonfinite = nonfinite.totals(streams, total.states)
        numbers = dict(self.evaluator.compute(total.states))
        if self.functions is not None:
            numbers |= self.functions.compute(total.states)
            examples |= self.functions.examples(total.states)
        numbers = {name: _with_goals(name, result, self.goals) for name, result in numbers.items()}
        in_slices = {name: sliced.counted(total.states.get(name, {})) for name in numbers}
        numbers = {name: sliced.with_worst(result, in_slices[name]) for name, result in numbers.items()}
        slices, left_out = sliced.largest(numbers, in_slices)
        return Result(
            group=self.join.group,
            workers=len(self.join.members),
            examples=examples,
            metrics={name: dict(metric.values) for name, metric in numbers.items()},
            phases=total.slowest,
            variables=variables,
            task=self.task_digest,
            profile=self.profile,
            saves=(),
            classes={name: few for name, metric in numbers.items() if (few := _few_classes(metric))},
            data={stream.eval_set: _data(stream) for stream in streams}
            | {name: EvalData(None, None, "own") for name in self._names_of_functions},
            nonfinite=found_nonfinite,
            notes=(*_notes(numbers, {stream.eval_set: stream.notes for stream in streams}), *left_out, *notes),
            slices=slices,
        )


def _bytes(states: States) -> int:
    return 8 * sum(state.rows * state.width for by_name in states.values() for state in by_name.values())


def _peak_bytes() -> int:
    """Return the most memory that this process had at once, which `VmHWM` is; see proc_pid_status(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


class _Progress:
    """Report progress, at most once per interval."""

    def __init__(self, command: Evaluate, report: Callable[[Report], None], now: Callable[[], float]) -> None:
        self._command, self._report, self._now = command, report, now
        self._batches, self._reported_at = 0, -1.0
        self._total: int | None = None

    def start_over(self, total: int | None) -> None:
        self._batches, self._total, self._reported_at = 0, total, -1.0

    def tick(self) -> None:
        self._batches += 1
        now = self._now()
        is_due = now - self._reported_at >= self._command.progress_seconds
        if is_due or self._batches in (1, self._total):
            self._reported_at = now
            self._report(Progress(self._command.plan, self._batches, self._total))

    def alive(self) -> None:
        """Report that the worker is alive, while something runs that has no batches."""
        self._report(Progress(self._command.plan, max(self._batches, 1), self._total))


def _exchange_hello(
    collective: Collective,
    join: Join,
    streams: Sequence[Stream],
    hello: dict[str, str],
    outside: Mapping[str, str],
    evaluator: Evaluator,
    *,
    resumes: bool,
) -> bool:
    """Compare what the ranks are about to do. Raises `mismatch` or `stream_differs` with the ranks that differ.

    Return whether any rank `resumes`, so that it found eval sets that an attempt before finished.
    Each rank writes its row of 64-bit digests into a matrix of zeros, so the sum of the matrices has the rows of all.
    """
    texts = [hello[name] for name in _HELLO]
    compared = [stream for stream in streams if stream.fingerprint]
    texts += [f"{stream.sharding} {stream.fingerprint} {stream.batches} {stream.examples}" for stream in compared]
    row = np.zeros(len(_HELLO) + MAX_EVAL_SETS + 2, np.int64)
    row[: len(texts)] = [short_digest(text) for text in texts]
    row[-2:] = resumes, evaluator.outputs_are_new
    profile = np.frombuffer(hello["profile"].encode()[:_PROFILE_BYTES].ljust(_PROFILE_BYTES, b"\0"), np.int64)
    rows = _gather(collective, join, np.concatenate([row, profile]))
    for column, (name, complaint) in enumerate(_HELLO.items()):
        if groups := differing(rows[:, column]):
            difference = (name == "profile" and _describe_profiles(rows[:, len(row) :], join)) or sides_of(groups, join)
            if name == "outside":
                difference = f"{_name_parts(collective, join, outside)}: {difference}"
            raise EvaluationError("mismatch", f"ranks {complaint} ({name}): {difference}", sides=groups)
    for column, stream in enumerate(compared, start=len(_HELLO)):
        if groups := differing(rows[:, column]):
            raise EvaluationError(
                "stream_differs",
                f"eval set {stream.eval_set!r}: ranks read different data: {sides_of(groups, join)}. Each rank must "
                f"read the same examples in the same order: {order_advice('and let all nodes see the same files')}",
                sides=groups,
            )
    if len(rows) > 1 and rows[:, len(row) - 1].any():
        _compare_outputs(collective, join, streams, evaluator)
    evaluator.outputs_are_new = False
    return bool(rows[:, len(row) - 2].any())


def _compare_outputs(collective: Collective, join: Join, streams: Sequence[Stream], evaluator: Evaluator) -> None:
    """Raise `mismatch` if ranks compute other outputs. It takes one more collective, the first time a task runs."""
    mine = evaluator.outputs()
    rows = _gather(collective, join, mine.view(np.int64).ravel())
    for place, groups in differing_outputs([row.view(np.float64).reshape(mine.shape) for row in rows]):
        raise EvaluationError(
            "mismatch", f"{what_differs(streams[place].eval_set)} ({sides_of(groups, join)})", sides=groups
        )


def _with_goals(eval_set: str, numbers: MetricResult, goals: Mapping[str, Goal]) -> MetricResult:
    """Return the numbers of an eval set with the goals that the task gives, by EVAL_SET/METRIC."""
    own = {name.removeprefix(f"{eval_set}/"): goal for name, goal in goals.items() if name.startswith(f"{eval_set}/")}
    if not own:
        return numbers
    unknown = [
        f"Task(goals={{{f'{eval_set}/{name}'!r}: …}}): there is no such number, but {', '.join(numbers.values)}"
        for name in own
        if name not in numbers.values and name not in numbers.classes
    ]
    return replace(
        numbers,
        values={name: replace(each, goal=own.get(name, each.goal)) for name, each in numbers.values.items()},
        classes={
            name: {label: replace(each, goal=own.get(name, each.goal)) for label, each in classes.items()}
            for name, classes in numbers.classes.items()
        },
        slices={
            key: {name: replace(each, goal=own.get(name, each.goal)) for name, each in values.items()}
            for key, values in numbers.slices.items()
        },
        notes=(*numbers.notes, *unknown),
    )


def _notes(numbers: Mapping[str, MetricResult], of_data: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return each note once, with the names of its eval sets unless it applies to all sets."""
    by_note: dict[str, list[str]] = {}
    for name, result in numbers.items():
        for note in (*result.notes, *of_data.get(name, ())):
            by_note.setdefault(note, []).append(name)
    return tuple(
        note if len(names) == len(numbers) else f"eval set {', '.join(map(repr, names))}: {note}"
        for note, names in by_note.items()
    )


def _data(stream: Stream) -> EvalData:
    batches = stream.batches if stream.is_counted else None
    sharding = "batches" if stream.sharding == "index" else stream.sharding
    return EvalData(stream.fingerprint or None, batches, sharding, stream.sampled)


def _few_classes(numbers: MetricResult) -> dict[str, dict[str, Value]]:
    """Return the numbers by class of metrics with few classes. The journal keeps them, and each becomes a gauge."""
    return {name: dict(classes) for name, classes in numbers.classes.items() if len(classes) <= MAX_CLASSES}


MAX_CLASSES: Final = 50
"""Metrics of more classes report only their averages; the other numbers follow from the states that workers save."""


def _count(streams: Sequence[Stream], reduced: States) -> dict[str, int]:
    """Return the number of evaluated examples per set. Raises `count` if it differs from the expected number."""
    counted = {stream.eval_set: int(exact_sum(reduced[stream.eval_set], EXAMPLES).integers()) for stream in streams}
    for stream in streams:
        evaluated = counted[stream.eval_set]
        if stream.is_counted and evaluated != stream.examples - _left_out(stream, reduced):
            raise EvaluationError(
                "count", f"eval set {stream.eval_set!r}: {evaluated} of {stream.examples} examples were evaluated"
            )
        if stream.expected is not None and evaluated != stream.expected:
            raise EvaluationError(
                "count",
                f"eval set {stream.eval_set!r}: {evaluated} examples were evaluated, EvalSet says {stream.expected}",
            )
        if evaluated == 0:
            raise task_error(f"eval set {stream.eval_set!r} is empty: it has no example to evaluate")
    return counted


def _left_out(stream: Stream, reduced: States) -> int:
    """Return how many examples of a list of batches these batches lack. Batches that were read count what they hold."""
    states = reduced[stream.eval_set]
    return int(exact_sum(states, LEFT_OUT).integers()) if stream.sharding == "index" and LEFT_OUT in states else 0


def _gather(collective: Collective, join: Join, row: Int64s) -> Int64s:
    matrix = np.zeros((len(join.members), len(row)), np.int64)
    matrix[join.rank] = row
    return collective.sum(matrix.ravel()).reshape(matrix.shape)


def _lines(profile: Mapping[str, str]) -> str:
    """Write one entry per line in the given order; if not all fit, only the first ones can be reported."""
    return "".join(f"{name}\t{value}\n" for name, value in profile.items())


def _name_parts(collective: Collective, join: Join, outside: Mapping[str, str]) -> str:
    """Name the parts that differ. This takes one more collective; all ranks enter it, as all know of a difference."""
    parts = sorted(outside.items())
    row = np.zeros(_MAX_PARTS, np.int64)
    row[: len(parts)] = [short_digest(f"{name} {digest}") for name, digest in parts[:_MAX_PARTS]]
    rows = _gather(collective, join, row)
    numbers = [number for number in range(_MAX_PARTS) if differing(rows[:, number])]
    names = [parts[number][0] for number in numbers if number < len(parts)]
    return listed(names, _MAX_NAMED_PARTS) or "some layers"


def _describe_profiles(rows: Int64s, join: Join) -> str:
    """Name the entries that differ, with the value on each rank; empty if the differing entries were not sent."""
    texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    profiles = [dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line) for text in texts]
    differences = []
    for name in dict.fromkeys(name for profile in profiles for name in profile):
        by_value: dict[str, list[int]] = {}
        for rank, profile in enumerate(profiles):
            by_value.setdefault(profile.get(name, "nothing"), []).append(rank)
        if len(by_value) > 1:
            values = (f"{value!r} for {named(ranks, join)}" for value, ranks in by_value.items())
            differences.append(f"{name} is {' against '.join(values)}")
    return "; ".join(differences)
