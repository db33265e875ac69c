"""One evaluation on several ranks, with a fake framework: what is compared, saved, added up, and told."""

import errno
import gc
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from sidecar import results
from sidecar.evaluation import failures, reduction
from sidecar.evaluation.backend import Rows, Stream, backend
from sidecar.evaluation.data.opened_files import OpenedFiles
from sidecar.evaluation.dispatcher import Dispatcher
from sidecar.evaluation.eval_loop import EXAMPLES
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.npy_table import NpyTable
from sidecar.evaluation.output_comparison import no_outputs, summary
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.states import ExactSum
from sidecar.protocol import states
from sidecar.protocol.messages import Check, Done, Evaluate, Failed, Join, Joined, Phase, Progress, Ready
from sidecar.protocol.records import Checkpoint, EvalData, Member, Value
from sidecar.protocol.states import FAILURE_CLASSES, WorkerPhase


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

    def differs(self):
        """Return whether the data changed: never."""
        return False

    def outside(self):
        """By part."""
        return self.held

    def outputs(self):
        """Of one set."""
        found = no_outputs()
        found[0] = summary([np.array(self.predicted, "float32")])
        return found

    def _maybe(self, what):
        if what in self.raises:
            raise self.raises[what]

    def read(self, tick, evaluated, most=None):
        """Three batches."""
        self.evaluated, self.most = evaluated, most
        self._maybe("read")
        for _ in range(3):
            tick()
        return self.streams

    def restore(self, path):
        """Remember it."""
        self.path = path
        return lambda: self._maybe("restore")

    def digest(self):
        """Of the values."""
        return lambda: self.variables

    def layout(self):
        """Of the states below."""
        return self.metrics

    def evaluate(self, tick, keep):
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
        """A file."""
        self._maybe("save")
        (folder / "weights").write_text(self.variables)

    def compute(self, reduced):
        """The sum."""
        self._maybe("conclude")
        number = float(reduced["test"]["sum"].round())
        total = Value(value=number, hex=number.hex())
        few, many = ({str(number): total for number in range(count)} for count in (50, 51))
        return {"test": MetricResult({"sum": total}, {"few": few, "many": many}, notes=("a sum",))}


class Meeting:
    """A collective of threads."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size, timeout=20)
        self._given = [None] * size

    def rank(self, rank):
        """What that rank holds of it."""
        meeting = self

        class Rank:
            def begin(self, command):
                """Nothing to prepare."""

            def reduce(self, join, report):
                """Two sums."""
                return reduction.reduce_packs(self.sum, join, report)

            def sum(self, mine):
                """Wait for all."""
                meeting._given[rank] = mine
                meeting._barrier.wait()
                total = np.sum(meeting._given, axis=0)
                meeting._barrier.wait()
                return total

        return Rank()


STREAM = Stream(eval_set="test", fingerprint="abc", batches=3, examples=5, own_batches=1, own_examples=2)
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

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def ranks(parts=PARTS, streams=(STREAM,), **changes):
    return [FakeEvaluator(streams, part, **changes) for part in parts]


def test_every_rank_holds_the_whole_result(tmp_path):
    """Phases in their order, progress of one's own, and one result for all."""
    found = run(tmp_path, ranks())
    results = [end.result for end, _, _ in found]
    assert results[0] == results[1] == results[2]
    assert results[0].examples == {"test": 5}
    assert results[0].metrics["test"]["sum"].value == 0.6
    assert results[0].notes == ("a sum",)
    assert results[0].workers == 3
    assert results[0].data == {"test": EvalData("abc", 3, "batches")}
    for rank, (end, phases, reports) in enumerate(found):
        assert (end.plan, end.rank, end.traces, end.builds) == (7, rank, 1, 1)
        assert phases == ["read", "restore", "hello", "evaluate", "save", "reduce", "conclude"]
        assert reports == [Progress(7, 1, None), Progress(7, 2, None), Progress(7, 3, None), Progress(7, 1, 1)]


def test_to_add_up_large_states_may_take_its_time(tmp_path, monkeypatch):
    """It has another name, since daemons give up a group that is in `reduce` for seconds."""
    monkeypatch.setattr(states, "_SMALL_STATE_BYTES", 8)
    for _, phases, _ in run(tmp_path, ranks()):
        assert phases == ["read", "restore", "hello", "evaluate", "save", "sum", "conclude"]


def test_the_plan_says_which_sets_take_part(tmp_path):
    """Its number of evaluations reaches whoever chooses them."""
    evaluators = ranks()
    assert all(isinstance(end, Done) for end, _, _ in run(tmp_path, evaluators, evaluated=[3, 3, 3]))
    assert [each.evaluated for each in evaluators] == [3, 3, 3]
    assert [each.most for each in evaluators] == [None, None, None]


@pytest.mark.parametrize(("attempt", "order"), [(1, ["restore", "read"]), (2, ["read", "restore"])])
def test_a_second_attempt_reads_the_checkpoint_when_the_data_are_read(tmp_path, attempt, order):
    """The first one does both at once; so a crash tells what it comes from, should it happen again."""
    began = []

    class Noting(FakeEvaluator):
        """Notes what is begun first."""

        def read(self, tick, evaluated, most=None):
            """Note it."""
            began.append("read")
            return super().read(tick, evaluated, most)

        def restore(self, path):
            """Note it."""
            began.append("restore")
            return super().restore(path)

    ((end, _, _),) = run(tmp_path, [Noting((STREAM,), [each for part in PARTS for each in part])], attempt=[attempt])
    assert (isinstance(end, Done), began) == (True, order), end


def test_progress_is_not_told_too_often(tmp_path):
    """The first and the last batch always, others once per interval."""
    ((_, _, reports),) = run(tmp_path, ranks([[1.0] * 5]), progress_seconds=[1000.0])
    assert reports == [Progress(7, 1, None), Progress(7, 1, 1)]


@pytest.mark.parametrize(
    ("what", "values", "words"),
    [
        (
            "plan",
            [7, 7, 8],
            "are not in the same plan (plan): rank 0 on node-0, rank 1 on node-1 against rank 2 on node-2",
        ),
        ("code", ["a", "b", "b"], "run different code of this program, because it was upgraded meanwhile (code)"),
        ("checkpoint", ["a", "b", "a"], "received different checkpoints (checkpoint)"),
        ("task", ["a", "b", "b"], "run different code of the task (task)"),
        (
            "profile",
            [{"isa": "avx"}, {"isa": "neon"}, {}],
            "compute with different versions, devices or settings (profile)",
        ),
    ],
)
def test_hello_names_what_differs(tmp_path, what, values, words):
    """No rank evaluates before all ranks are about to evaluate the same."""
    for end, phases, _ in run(tmp_path, ranks(), **{what: values}):
        assert isinstance(end, EvaluationError)
        assert end.kind == "mismatch"
        assert words in str(end)
        assert phases[-1] == "hello"
        assert sum(map(len, end.sides)) == 3
    assert not (tmp_path / "evaluations").exists()


def test_hello_names_the_layers_that_differ_outside_their_variables(tmp_path):
    """Vocabularies and the like: which parts, and on which nodes."""
    held = [{"vocabulary of a": "1", "bins of b": each, "vocabulary of c": "3"} for each in "223"]
    evaluators = [FakeEvaluator((STREAM,), part, held=own) for part, own in zip(PARTS, held, strict=True)]
    for end, phases, _ in run(tmp_path, evaluators):
        assert end.kind == "mismatch"
        assert end.sides == ((0, 1), (2,))
        assert phases[-1] == "hello"
        words = "outside the model's variables (outside): bins of b: rank 0 on node-0, rank 1 on node-1 against rank 2"
        assert words in str(end)


def test_hello_tells_what_differs_in_the_profile(tmp_path):
    """Each entry with its values and the nodes that have them; the rest is not told."""
    usual = {"device": "1 x NVIDIA H200", "framework": "tensorflow 2.21.0", "threads": "2"}
    profiles = [usual, usual | {"device": "CPU"}, usual | {"threads": "4"}]
    for end, _, _ in run(tmp_path, ranks(), profile=profiles):
        assert end.kind == "mismatch"
        assert end.sides == ((0,), (1,), (2,))
        assert str(end).partition("(profile): ")[2] == (
            "device is '1 x NVIDIA H200' for rank 0 on node-0, rank 2 on node-2 against 'CPU' for rank 1 on node-1; "
            "threads is '2' for rank 0 on node-0, rank 1 on node-1 against '4' for rank 2 on node-2"
        )
    endless = [{"isa": "x" * 5000}, {"isa": "x" * 5000}, {"isa": "x" * 5000 + "y"}]
    error = run(tmp_path, ranks(), profile=endless)[0][0]
    assert str(error).endswith("(profile): rank 0 on node-0, rank 1 on node-1 against rank 2 on node-2")
    assert as_failed(error, phase="hello", plan=1, rank=0).sides == ((0, 1), (2,))


def test_a_set_divided_by_file(tmp_path):
    """Its list of files is compared; how many examples it has only the sum tells, and the result says how it was."""
    by_file = replace(STREAM, batches=0, examples=0, own_batches=0, own_examples=0, sharding="files")
    evaluators = ranks(streams=(by_file,))
    for end, _, reports in run(tmp_path, evaluators):
        assert end.result.data == {"test": EvalData("abc", None, "files")}
        assert end.result.examples == {"test": 5}
        assert reports[-1] == Progress(7, 1, None)
    for changed in (replace(by_file, fingerprint="xyz"), replace(by_file, sharding="batches")):
        evaluators[1].streams = (changed,)
        assert "eval set 'test': ranks read different data" in str(run(tmp_path, evaluators)[0][0])
    for each in evaluators:
        each.streams = (replace(by_file, expected=6),)
    error = run(tmp_path, evaluators)[0][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 5 examples were evaluated, EvalSet says 6")


def test_hello_compares_values_and_data(tmp_path):
    """Other values restored from the same checkpoint; another stream of data; other sets."""
    evaluators = ranks()
    evaluators[2].variables = "others"
    assert "restored different values from the same checkpoint (variables)" in str(run(tmp_path, evaluators)[0][0])
    for changed in (replace(STREAM, fingerprint="xyz"), replace(STREAM, examples=6), replace(STREAM, batches=4)):
        evaluators = ranks()
        evaluators[1].streams = (changed,)
        error = run(tmp_path, evaluators)[2][0]
        assert error.kind == "stream_differs"
        assert "eval set 'test': ranks read different data: rank 0 on node-0, rank 2 on node-2 against rank 1" in str(
            error
        )
    evaluators = ranks()
    evaluators[1].streams = (replace(STREAM, eval_set="other"),)
    assert "have different eval sets (eval sets)" in str(run(tmp_path, evaluators)[0][0])


def test_count_is_checked(tmp_path):
    """Examples evaluated against those read, and against those that the task expects."""
    error = run(tmp_path, ranks([[1.0], [2.0]]))[0][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 2 of 5 examples were evaluated")
    by_itself = Stream(
        eval_set="test",
        fingerprint="",
        batches=0,
        examples=0,
        own_batches=0,
        own_examples=0,
        expected=4,
        sharding="own",
    )
    error = run(tmp_path, [FakeEvaluator((by_itself,), [1.0]), FakeEvaluator((by_itself,), [2.0])])[1][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 2 examples were evaluated, EvalSet says 4")
    error = run(tmp_path, [FakeEvaluator((replace(by_itself, expected=None),), [])])[0][0]
    assert (error.kind, "is empty" in str(error)) == ("task_error", True)


def test_an_evaluation_that_begins_again(tmp_path):
    """Everything is done once more, on all ranks, and the saves are those of the last time."""
    evaluators = ranks()
    for evaluator in evaluators:
        evaluator.again = 1
    found = run(tmp_path, evaluators)
    assert [evaluator.rounds for evaluator in evaluators] == [2, 2, 2]
    assert found[0][0].result.metrics == run(tmp_path / "once", ranks())[0][0].result.metrics
    for rank in range(3):
        assert (tmp_path / "evaluations" / "c" / "plan-7" / f"worker-{rank}-of-3" / "states.json").exists()


def test_saves_are_complete_before_the_sum(tmp_path):
    """Each rank's folder holds its weights and its own states; together they are the result."""
    found = run(tmp_path, ranks(), save_weights=["all", "all", "none"])
    total = ExactSum((), "float64")
    for rank in range(3):
        folder = tmp_path / "evaluations" / "c" / "plan-7" / f"worker-{rank}-of-3"
        assert (folder / "weights").exists() == (rank < 2)
        saved = json.loads((folder / "states.json").read_text())
        assert (saved["schema"], saved["variables"]) == (1, "values")
        total.merge(ExactSum.from_json(saved["states"]["test"]["sum"]))
    assert float(total.round()) == found[0][0].result.metrics["test"]["sum"].value


def plan_folder(tmp_path):
    return tmp_path / "evaluations" / "c" / "plan-7"


def test_one_rank_may_save_for_all(tmp_path):
    """All restored the same; states are everybody's own."""
    run(tmp_path, ranks(), save_weights=["first"] * 3)
    names = {path.name: sorted(each.name for each in path.iterdir()) for path in plan_folder(tmp_path).iterdir()}
    assert names == {
        "worker-0-of-3": ["states.json", "weights"],
        "worker-1-of-3": ["states.json"],
        "worker-2-of-3": ["states.json"],
    }


def test_all_that_was_kept_is_on_disk_before_the_sum(tmp_path, monkeypatch):
    """So that the end of the sum proves every rank's saves, and they are the result."""
    reduce, complete = reduction.reduce_packs, []

    def checked(collective, join, *rest):
        folder = plan_folder(tmp_path) / f"worker-{join.rank}-of-3"
        kept = np.load(folder / "predictions" / "test" / "predictions.npy", allow_pickle=False)
        complete.append(((folder / "states.json").exists(), (folder / "weights").exists(), len(kept)))
        return reduce(collective, join, *rest)

    monkeypatch.setattr(reduction, "reduce_packs", checked)
    evaluators = [
        FakeEvaluator((STREAM,), part, predicts=True, first=first) for part, first in zip(PARTS, (3, 0, 1), strict=True)
    ]
    found = run(tmp_path, evaluators)
    assert sorted(complete) == [(True, True, 1), (True, True, 2), (True, True, 2)]
    joined = results.read(plan_folder(tmp_path))
    assert joined.predictions["test"]["predictions"].tolist() == [0.3, 1e300, -1e300, 0.1, 0.2]
    assert math.fsum(joined.predictions["test"]["predictions"]) == found[0][0].result.metrics["test"]["sum"].value
    assert evaluators[0].compute(joined.states)["test"].values["sum"] == found[0][0].result.metrics["test"]["sum"]


@pytest.mark.parametrize("what", ["begin", "keep"])
def test_storage_that_fails_while_the_data_is_evaluated_is_to_blame(tmp_path, monkeypatch, what):
    """Not the task, whose phase it is; and nothing is left."""

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "mkdir") if what == "begin" else (NpyTable, "add")), refuse)
    ((end, phases, _),) = run(tmp_path, [FakeEvaluator((STREAM,), [1.0] * 5, predicts=True)])
    failed = as_failed(end, phase=phases[-1], plan=7, rank=0)
    assert (phases[-1], failed.kind) == ("evaluate", "storage")
    assert "No space left on device; free some space there" in failed.message
    assert list(tmp_path.glob("**/*worker-*")) == []


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("read", "task_error"),
        ("restore", "task_error"),
        ("evaluate", "task_error"),
        ("save", "storage"),
        ("conclude", "task_error"),
    ],
)
def test_kind_of_an_exception(tmp_path, phase, kind):
    """Whose fault it is when something unknown is raised, by where it was raised."""
    evaluator = FakeEvaluator((STREAM,), [1.0] * 5, raises={phase: OSError("no space left on device")})
    ((end, phases, _),) = run(tmp_path, [evaluator])
    failed = as_failed(end, phase=phases[-1], plan=7, rank=0)
    assert phases[-1] == phase
    assert failed.kind == kind
    assert "OSError: no space left on device" in failed.message


def test_every_kind_is_on_the_list():
    """What failures are called is what records know."""
    assert set(failures._KIND_BY_PHASE.values()) <= set(FAILURE_CLASSES)


def test_endless_messages_are_cut():
    """The end of a traceback says most."""
    failed = as_failed(ValueError("x" * 100_000 + "the end"), phase="read", plan=None, rank=None)
    assert len(failed.message) == 20_000
    assert failed.message.endswith("the end")


def test_causes_lose_our_frames_too():
    """An exception with a cause shows both, each from the user's first frame on."""
    script = "def user():\n  try:\n    1 / 0\n  except ZeroDivisionError as e:\n    raise ValueError('v') from e\n"
    names = {}
    exec(compile(script, "/home/me/my_eval.py", "exec"), names)

    def ours():
        names["user"]()

    ours_in_worker = ours.__code__.replace(co_filename=str(Path(failures.__file__).with_name("flow.py")))
    try:
        type(ours)(ours_in_worker, globals(), closure=ours.__closure__)()
    except ValueError as error:
        message = as_failed(error, phase="read", plan=None, rank=None).message
    assert 'File "/home/me/my_eval.py", line 5, in user' in message
    assert 'File "/home/me/my_eval.py", line 3, in user' in message
    assert "sidecar/evaluation" not in message


def test_the_demos_frames_are_the_users():
    """The demo is a task like any other: its frames are shown."""
    names = {}
    demo = Path(failures.__file__).parents[1] / "demo" / "digits.py"
    exec(compile("def build(): raise ValueError('v')", str(demo), "exec"), names)
    with pytest.raises(ValueError, match="v") as caught:
        names["build"]()
    assert str(demo) in as_failed(caught.value, phase="build", plan=None, rank=None).message


def test_graph_text_loses_our_frames():
    """AutoGraph and graph errors list frames in words."""
    ours = Path(failures.__file__).parent / "tensorflow" / "measure.py"
    text = (
        "in user code:\n\n"
        f'    File "{ours}", line 85, in step  *\n        predictions = self._model(x)\n'
        '    File "/home/me/my_eval.py", line 3, in call  *\n        return x + "a"\n\n'
        "Detected at node 'x' defined at (most recent call last):\n"
        f'  File "{ours}", line 85, in step\n\n  File "/home/me/my_eval.py", line 3, in call\n\n'
    )
    message = as_failed(TypeError(text), phase="read", plan=None, rank=None).message
    assert "measure.py" not in message
    assert "predictions" not in message
    assert message.count('File "/home/me/my_eval.py", line 3, in call') == 2
    assert 'return x + "a"' in message


class FakeBackend:
    """Forms groups of one, and builds what it was given."""

    version = "1"
    out_of_memory = ()

    def __init__(self, evaluator):
        self.evaluator = evaluator

    def join(self, join):
        """Alone."""
        return Meeting(len(join.members)).rank(join.rank)

    def build(self, *_):
        """As given."""
        return self.evaluator

    def profile(self, _):
        """Empty."""
        return {}


@pytest.fixture
def commanded(tmp_path):
    """Runs commands; returns their reports."""
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    reports = []
    commands = Dispatcher(FakeBackend(FakeEvaluator((STREAM,), [1.0] * 5)), reports.append)

    def run(command):
        reports.clear()
        commands.run(command)
        return list(reports)

    return run


def test_a_vocabulary_from_a_set_is_noted(commanded, tmp_path, monkeypatch):
    """Alike on all workers, but not in training; in each result."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (tmp_path / "of_sets.py").write_text(
        "from sidecar import Task\n"
        "WORDS = {word: at for at, word in enumerate({f'word-{number}' for number in range(200)})}\n"
        "CLASSES = sorted(WORDS)\n"
        "task = Task(print, {'test': print})\n"
    )
    commanded(join_of(tmp_path, "of_sets.py:task"))
    for _ in range(2):
        done = commanded(evaluation_of(tmp_path))[-1]
        assert [note.partition(":")[0] for note in done.result.notes if "set of texts" in note] == ["WORDS"]


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


def test_a_task_whose_data_changed_is_built_anew(tmp_path):
    """If a sample of them differs, or a file from which they were read."""
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    read_from = tmp_path / "data"
    read_from.write_text("x")

    class Building(FakeBackend):
        built, changes, refuses = 0, False, False

        def build(self, *_):
            """Read a file."""
            self.built += 1
            files._hear("open", (str(read_from), "r", 0))
            self.evaluator.differs = lambda: self.changes
            self.changes = False
            with failures.following_from_code():
                if self.refuses:
                    raise TypeError("labels have another shape now")
            return self.evaluator

    reports, files, framework = [], OpenedFiles(), Building(FakeEvaluator((STREAM,), [1.0] * 5))
    commands = Dispatcher(framework, reports.append, files)
    commands.run(join_of(tmp_path))
    command = evaluation_of(tmp_path)
    for number, change in enumerate((None, "sample", None, "file", None)):
        framework.changes = change == "sample"
        if change == "file":
            read_from.write_text("another content")
        reports.clear()
        commands.run(replace(command, save_to=str(tmp_path / f"s{number}")))
        assert (Phase(WorkerPhase.BUILD, command.plan) in reports) == (change is not None)
        assert isinstance(reports[-1], Done)
    assert framework.built == 3
    framework.changes, framework.refuses = True, True
    commands.run(replace(command, save_to=str(tmp_path / "s9")))
    assert isinstance(reports[-1], Failed)
    assert (reports[-1].kind, reports[-1].lasting) == ("task_error", None)


def test_all_evaluations_write_weights_in_one_thread(tmp_path):
    """A C library keeps an arena for each thread that ever wrote, with the buffers it freed there: 8 MB each time."""
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    evaluator, reports, threads = FakeEvaluator((STREAM,), [1.0] * 5), [], []
    evaluator.save_weights = lambda _: threads.append(threading.get_native_id())
    commands = Dispatcher(FakeBackend(evaluator), reports.append)
    commands.run(join_of(tmp_path))
    for number in range(3):
        save_to = str(tmp_path / f"plan-{number}")
        commands.run(replace(evaluation_of(tmp_path), save_to=save_to, save_weights="all"))
        assert isinstance(reports[-1], Done)
    assert (len(threads), len(set(threads))) == (3, 1)


def test_life_of_a_worker(commanded, tmp_path):
    """It joins, builds, and evaluates as often as it is told."""
    *phases, joined = commanded(join_of(tmp_path))
    assert phases == [Phase(WorkerPhase.JOIN), Phase(WorkerPhase.IMPORT), Phase(WorkerPhase.BUILD)]
    assert isinstance(joined, Joined)
    for _ in range(2):
        *rest, done = commanded(evaluation_of(tmp_path))
        assert isinstance(done, Done)
        assert all(isinstance(each, Phase | Progress) for each in rest)
    (failed,) = commanded(join_of(tmp_path))
    assert "cannot join g after g: a worker joins one group" in failed.message


@pytest.mark.parametrize("trusts", [False, True])
def test_what_stays_is_set_apart_before_a_stored_graph_comes(commanded, tmp_path, monkeypatch, trusts):
    """After the first evaluation; where graphs are trusted before it: what is frozen then would never be freed."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(FakeEvaluator, "loads_graphs", trusts)
    commanded(join_of(tmp_path))
    assert len(frozen) == trusts
    for _ in range(2):
        commanded(evaluation_of(tmp_path))
        assert len(frozen) == 1


def test_commands_out_of_order(commanded, tmp_path):
    """Evaluating before joining, and what is no command at all."""
    (failed,) = commanded(evaluation_of(tmp_path))
    assert (failed.kind, failed.plan) == ("join", 3)
    assert "cannot evaluate before the group is formed" in failed.message
    (failed,) = commanded(Ready("x", "1"))
    assert "Ready is not a command" in failed.message


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import sys; sys.exit('bye')", "raise RuntimeError('bye')"])
def test_task_that_ends_the_process(commanded, tmp_path, code):
    """What a task raises at import is told with its traceback, sys.exit included."""
    (tmp_path / "a_task.py").write_text(f"\n{code}\n")
    *_, failed = commanded(Check(task="a_task.py:task", framework="tensorflow", search_path=str(tmp_path), threads=1))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.phase) == ("task_error", "import")
    assert f'Traceback (most recent call last):\n  File "{tmp_path}/a_task.py", line 2, in <module>' in failed.message


def test_task_that_asks_for_options(commanded, tmp_path):
    """A training script that needs options of its command line: the message has the line that gives them."""
    script = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
    (tmp_path / "a_task.py").write_text(f"import sys\nsys.argv = ['x']\n{script}parser.parse_args()\n")
    *_, failed = commanded(Check(task="a_task.py:task", framework="tensorflow", search_path=str(tmp_path), threads=1))
    assert isinstance(failed, Failed)
    assert "SystemExit: 2" in failed.message
    assert 'above that import `import sys; sys.argv = ["train.py", "--option", "value"]`' in failed.message


def test_unknown_framework():
    """The table says which there are."""
    with pytest.raises(EvaluationError, match=r"'caffe'.*\btensorflow\b"):
        backend("caffe")


def test_numbers_by_class_where_there_are_few(tmp_path):
    """Up to fifty classes stand in the result; of more there are averages, and the states that workers save."""
    ((done, *_),) = run(tmp_path, [FakeEvaluator((STREAM,), [1.0] * 5)])
    assert {name: len(classes) for name, classes in done.result.classes["test"].items()} == {"few": 50}


def test_the_task_gives_goals_to_numbers(tmp_path):
    """Those that it names, by class as well; a name that no number has is noted."""
    goals = {"test/sum": "min", "test/few": "max", "test/other": "max", "another/sum": "max"}
    end = run(tmp_path, ranks(), goals=[goals] * 3)[0][0]
    assert end.result.metrics["test"]["sum"].goal == "min"
    assert {each.goal for each in end.result.classes["test"]["few"].values()} == {"max"}
    assert [note for note in end.result.notes if "goals" in note] == [
        "Task(goals={'test/other': …}): there is no such number, but sum"
    ]


@pytest.mark.parametrize("new", [[True] * 3, [False, False, True]])
def test_ranks_compare_what_their_models_compute(tmp_path, new):
    """Rounding is allowed, and a rank that was built later makes all of them compare again."""
    near = ((1.0, 2.0, 3.0), (1.0, 2.0 + 1e-6, 3.0), (1.0, 2.0, 3.0))
    made = [
        FakeEvaluator((STREAM,), numbers, outputs_are_new=is_new, predicted=predicted)
        for numbers, is_new, predicted in zip(PARTS, new, near, strict=True)
    ]
    assert all(isinstance(end, Done) for end, *_ in run(tmp_path / "a", made))
    assert not any(each.outputs_are_new for each in made)
    for evaluator, is_new in zip(made, new, strict=True):
        evaluator.outputs_are_new = is_new
    made[1].predicted = (1.0, 2.5, 3.0)
    for end, *_ in run(tmp_path / "b", made):
        assert (end.kind, end.sides) == ("mismatch", ((0, 2), (1,)))
        assert "rank 0 on node-0, rank 2 on node-2 against rank 1 on node-1" in str(end)
        assert "without a seed" in str(end)
    assert [each.outputs_are_new for each in made] == new
