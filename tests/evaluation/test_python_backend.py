"""The python backend without processes: any data that numpy can hold, any model, and the same bits for all ranks."""

import importlib
import pickle
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sidecar import EvalSet, Task, data
from sidecar.errors import TaskError
from sidecar.evaluation import path_alias
from sidecar.evaluation.backend import backend
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.framework_traits import traits_of
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.shared_folder import SharedFolderCollective
from sidecar.metrics import MAE, Accuracy, ExactSum, InTurn, Mean, MetricResult, Sums, value
from sidecar.protocol.messages import Check, Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(103, 5))
Y = GENERATOR.integers(0, 3, 103)
WEIGHTS = GENERATOR.random(103).astype(np.float32)


def predict(model, x):
    """Scores of three classes."""
    return x @ model


def task(source=lambda: (X, Y), **changes):
    given = {
        "load": np.load,
        "predict": predict,
        "eval_sets": {"test": source},
        "metrics": lambda: [Accuracy(), Mean(lambda _, scores: scores.max(axis=1))],
        "batch_size": 16,
    }
    return Task(**given | changes)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model-1.npy"
    np.save(path, np.random.default_rng(4).normal(size=(5, 3)))
    return path


def run(task, checkpoint, folder, ranks=1):
    """What every rank's evaluation came to: Done or an error."""
    members = tuple(Member(rank, f"node-{rank}", f"w.{rank}", "") for rank in range(ranks))
    ends = [None] * ranks

    def one(rank):
        join = Join(group="group", members=members, rank=rank, task="t", framework="python", search_path="/", threads=1)
        command = Evaluate(
            plan=1,
            checkpoint=Checkpoint(name=checkpoint.name, digest="digest", step=1, format="matching_file"),
            path=str(checkpoint),
            save_to=str(folder / f"worker-{rank}-of-{ranks}"),
            save_weights="all",
            progress_seconds=10.0,
        )
        try:
            ends[rank] = RankEvaluation(
                command=command,
                join=join,
                collective=LocalCollective() if ranks == 1 else SharedFolderCollective(join),
                evaluator=PythonEvaluator.build(task, Shard(rank, ranks), cache_bytes=1 << 20),
                task_digest="t",
                profile={},
                enter=lambda _: None,
                report=lambda _: None,
                in_parallel=ThreadPoolExecutor(1),
            ).run()
        except (EvaluationError, TaskError) as error:
            ends[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def evaluate_alone(task, checkpoint):
    """Evaluate on one rank, in this thread, so that whatever is raised is seen."""
    evaluator = PythonEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(checkpoint))()
    return evaluator.evaluate(lambda: None)


def refused(task, checkpoint, folder):
    """The sentence with which an evaluation of one rank fails."""
    (end,) = run(task, checkpoint, folder)
    assert isinstance(end, EvaluationError | TaskError), end
    return str(end)


def examples():
    yield from zip(X, Y, strict=True)


SOURCES = {
    "arrays": lambda: (X, Y),
    "lists": lambda: [X, Y],
    "examples": examples,
    "weights": lambda: (X, Y, np.ones(len(X))),
    "prepared": EvalSet(lambda: (np.arange(103), Y), prepare=lambda number, y: (X[number], y)),
    "divided": EvalSet(
        lambda shard: (each for at, each in enumerate(examples()) if at % shard.world_size == shard.rank)
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_gives_the_numbers_of_a_plain_loop(checkpoint, tmp_path, source):
    """For one, two and three ranks, the same bits."""
    scores = X @ np.load(checkpoint)
    found = []
    for ranks in (1, 2, 3):
        ends = run(task(source), checkpoint, tmp_path / f"of-{ranks}", ranks)
        metrics = [end.result.metrics["test"] for end in ends]
        assert all(each == metrics[0] for each in metrics)
        assert all(end.result.examples == {"test": 103} for end in ends)
        assert metrics[0]["accuracy"].value == np.mean(scores.argmax(axis=1) == Y)
        assert metrics[0]["mean"].value == pytest.approx(scores.max(axis=1).mean(), rel=1e-12)
        found.append({name: value.hex for name, value in metrics[0].items()})
    if source is not SOURCES["divided"]:  # whose batches depend on the ranks, and so does how BLAS rounds
        assert found[0] == found[1] == found[2]


def test_batches_of_the_tasks_own(checkpoint, tmp_path):
    """`batch_size=None`: the iterator yields batches, of which the last may be short."""

    def batches():
        for start in range(0, 103, 16):
            yield X[start : start + 16], Y[start : start + 16]

    whole, own = (
        run(each, checkpoint, tmp_path / name)[0].result.metrics
        for name, each in (("a", task()), ("b", task(batches, batch_size=None)))
    )
    assert whole == own


def reused_output():
    """Return a `predict` that writes to one array, as with `out=` or an IO binding."""
    buffer = np.zeros((16, 3))
    return lambda model, x: np.matmul(x, model, out=buffer[: len(x)])


def changed_input(model, x):
    scores = x @ model
    x *= -1
    return scores


def reused_example():
    buffer = np.zeros(5)
    for x, y in zip(X, Y, strict=True):
        buffer[:] = x
        yield buffer, y


def reused_batch():
    buffer = np.zeros((16, 5))
    for start in range(0, 103, 16):
        part = buffer[: len(X[start : start + 16])]
        part[:] = X[start : start + 16]
        yield part, Y[start : start + 16]


def negated_in_place(x, y):
    x *= -1
    return x, y


@pytest.mark.parametrize(
    "changes",
    [
        {"predict": reused_output()},
        {"predict": changed_input},
        {"eval_sets": {"test": reused_example}},
        {"eval_sets": {"test": reused_batch}, "batch_size": None},
        {
            "eval_sets": {"test": EvalSet(lambda: (X, Y), prepare=negated_in_place)},
            "predict": lambda model, x: (-x) @ model,
        },
        {
            "eval_sets": {"test": EvalSet(reused_batch, prepare=negated_in_place)},
            "predict": lambda model, x: (-x) @ model,
            "batch_size": None,
        },
    ],
    ids=["reused output", "changed input", "reused example", "reused batch", "prepare", "prepare of batches"],
)
def test_arrays_that_are_reused_or_changed_in_place_change_no_number(checkpoint, tmp_path, changes):
    """Neither of this evaluation nor of the next one, for which batches stay in memory; the task's data stay."""
    x, y = X.copy(), Y.copy()
    expected = run(task(), checkpoint, tmp_path / "a")[0].result.metrics["test"]
    made = task(**changes)
    for again in range(2):
        (end,) = run(made, checkpoint, tmp_path / f"b-{again}")
        assert end.result.metrics["test"] == expected
    assert np.array_equal(X, x)
    assert np.array_equal(Y, y)


def test_batches_that_stay_in_memory_do_not_change(checkpoint):
    """One worker process evaluates many checkpoints with them."""
    evaluator = PythonEvaluator.build(task(predict=changed_input), Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(checkpoint))()
    found = [evaluator.compute(evaluator.evaluate(lambda: None))["test"] for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("metric", ["Mean", "own", "predictions"])
def test_a_function_that_changes_what_others_see_is_refused(checkpoint, metric):
    """Labels and predictions are shared by all metrics, so nobody may write to them."""

    def change(_, scores):
        scores *= -1
        return scores[:, 0]

    class Own(Confident):
        """A metric that sorts in place."""

        def add(self, states, batch):
            """Change the scores of others."""
            batch.predictions.sort()
            super().add(states, batch)

    changes = {
        "Mean": {"metrics": lambda: [Mean(change), Accuracy()]},
        "own": {"metrics": lambda: [Own(), Accuracy()]},
        "predictions": {"predictions": lambda _x, y, scores: change(y, scores)},
    }[metric]
    with pytest.raises(ValueError, match="read-only"):
        evaluate_alone(task(**changes), checkpoint)


def masked(array):
    return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) % 7 == 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_sets": {"test": lambda: (masked(X), Y)}},
        {"eval_sets": {"test": lambda: (X, masked(Y))}},
        {"eval_sets": {"test": lambda: zip(X, masked(Y), strict=True)}},
        {"eval_sets": {"test": lambda: ([masked(row) for row in X], Y)}},
        {"predict": lambda model, x: masked(x @ model)},
        {"predictions": lambda _x, _y, scores: masked(scores)},
        {"metrics": lambda: [Mean(lambda _, scores: masked(scores[:, 0]))]},
    ],
)
def test_masked_values_are_refused(checkpoint, tmp_path, changes):
    """Otherwise numpy would forget the mask, and count what is below it."""
    assert "masked" in refused(task(**changes), checkpoint, tmp_path / "a")


def test_a_mask_that_hides_nothing_is_fine(checkpoint, tmp_path):
    """As netCDF files yield it."""
    expected = run(task(), checkpoint, tmp_path / "a")[0].result.metrics
    (end,) = run(task(lambda: (np.ma.masked_array(X), Y)), checkpoint, tmp_path / "b")
    assert end.result.metrics == expected


def test_none_keeps_its_place(checkpoint, tmp_path):
    """Weights are not labels, and the second output is not the first; at the end None is what is not given."""
    (plain,) = run(task(), checkpoint, tmp_path / "a")
    (end,) = run(task(lambda: (X, Y, None)), checkpoint, tmp_path / "b")
    assert end.result.metrics == plain.result.metrics
    without = task(lambda: (X, None, WEIGHTS), metrics=lambda: [Mean(lambda _, scores: scores[:, 0])])
    assert "compare predictions with labels" in refused(without, checkpoint, tmp_path / "c")
    several = task(
        lambda: (X, (Y, Y, Y)),
        predict=lambda model, x: (None, x @ model, -(x @ model)),
        metrics=lambda: {1: [Accuracy()]},
    )
    (end,) = run(several, checkpoint, tmp_path / "d")
    assert end.result.metrics["test"]["1_accuracy"] == plain.result.metrics["test"]["accuracy"]


def test_npz_and_several_outputs(checkpoint, tmp_path):
    """Files as sources; labels and predictions in dicts, with metrics of each output."""
    np.savez(tmp_path / "test.npz", x=X, y=Y)
    (done,) = run(task(data.npz(tmp_path / "test.npz", "x", "y")), checkpoint, tmp_path / "a")
    (both,) = run(
        task(
            lambda: (X, {"kind": Y, "size": X[:, 0]}),
            predict=lambda model, x: {"kind": x @ model, "size": x[:, 1]},
            metrics=lambda: {"kind": [Accuracy()], "size": [MAE()]},
        ),
        checkpoint,
        tmp_path / "b",
    )
    numbers = both.result.metrics["test"]
    assert numbers["kind_accuracy"] == done.result.metrics["test"]["accuracy"]
    assert numbers["size_mae"].value == pytest.approx(np.abs(X[:, 0] - X[:, 1]).mean())


class Confident:
    """The example of `Metric`."""

    name = "confident"

    def states(self, info):
        """Two counts."""
        del info
        return {"above": ExactSum((), "int64"), "all": ExactSum((), "int64")}

    def add(self, states, batch):
        """Count."""
        best = batch.predictions.max(axis=-1)
        states["above"].add(np.count_nonzero(best > 0.9))
        states["all"].add(len(best))

    def compute(self, states):
        """Divide once."""
        above, count = (int(states[name].integers()) for name in ("above", "all"))
        return MetricResult({"confident": value(above / count, "none")})


def test_a_metric_of_ones_own_is_merged_over_ranks(checkpoint, tmp_path):
    """As the docstring of `Metric` shows it."""
    ends = run(task(metrics=lambda: [Confident()]), checkpoint, tmp_path / "a", ranks=2)
    expected = np.mean((X @ np.load(checkpoint)).max(axis=1) > 0.9)
    assert [end.result.metrics["test"]["confident"].value for end in ends] == [expected] * 2


def test_named_sums_go_through_the_saves_of_ranks(checkpoint, tmp_path):
    """Ranks of this framework meet in their saves, where such sums are read from a text."""
    sums = Sums(
        lambda y, predictions: {"hits": (predictions.argmax(1) == y).sum(), "all": len(y)},
        lambda totals: totals["hits"] / totals["all"],
        name="share",
    )
    ends = run(task(metrics=lambda: [sums, Accuracy()]), checkpoint, tmp_path / "a", ranks=2)
    for end in ends:
        values = end.result.metrics["test"]
        assert values["share"].hex == values["accuracy"].hex


def _with_nan():
    x = X.copy()
    x[20, 1], x[30, 1] = np.nan, np.inf
    return x, Y


def predict_anyway(model, x):
    """As models of trees, which take NaN for missing; infinite numbers give nothing."""
    return np.where(np.isinf(x[:, 1:2]), np.nan, np.nan_to_num(x, posinf=0) @ model)


@pytest.mark.parametrize("policy", [None, "allow"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_inputs_may_be_missing(checkpoint, tmp_path, policy, ranks):
    """Models of trees know what NaN means there; in predictions it is still counted."""
    given = task(EvalSet(_with_nan, nonfinite=policy), predict=predict_anyway)
    for done in run(given, checkpoint, tmp_path / "a", ranks):
        assert {place: each.examples for place, each in done.result.nonfinite["test"].items()} == {"prediction": 1}


def test_missing_inputs_are_refused_where_the_set_says_so(checkpoint, tmp_path):
    """The message names the value that allows them."""
    (error,) = run(task(EvalSet(_with_nan, nonfinite="refuse"), predict=predict_anyway), checkpoint, tmp_path / "a")
    assert "nonfinite='allow'" in str(error)


def test_numbers_that_are_not_finite_are_counted_and_located(checkpoint, tmp_path):
    """As with TensorFlow, by where they are."""
    x = X.copy()
    x[20, 1] = np.nan
    (done,) = run(task(EvalSet(lambda: (x, Y), nonfinite="count")), checkpoint, tmp_path / "a")
    found = done.result.nonfinite["test"]
    assert {place: (each.examples, each.first_example) for place, each in found.items()} == {
        "input": (1, 20),
        "prediction": (1, 20),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"predict": lambda *_: None}, "Task(predict=…) must return predictions, found None"),
        ({"predict": lambda model, x: (x @ model)[:3]}, "one row for each of 16 examples, found float64 (3, 3)"),
        ({"predict": lambda _, x: [object()] * len(x)}, "must return numbers"),
        (
            {"predict": lambda _, x: np.array([["yes"]] * len(x), object)},
            "returns texts, such as 'yes': return their numbers, np.searchsorted(model.classes_, texts)[:, 0]",
        ),
        ({"predict": lambda _: 1}, "Task(predict=…) is called with ndarray and ndarray"),
        ({"load": lambda _: None}, "Task(load=…) must return a model"),
        ({"metrics": Accuracy}, "Task(metrics=…) must return a list"),
        ({"metrics": lambda: ["accuracy"]}, "must list metrics of sidecar.metrics"),
        ({"metrics": lambda: [np.mean]}, "InTurn(lambda y, predictions: mean(y, predictions), name='mean')"),
        ({"metrics": lambda: [Accuracy(), Accuracy()]}, "different names, found 'accuracy'"),
        ({"batch_size": None}, "give Task(batch_size=…)"),
        ({"eval_sets": {"test": lambda: (X, Y[:5])}}, "equally many examples, found 103, 5"),
        ({"eval_sets": {"test": lambda: iter([])}}, "is empty"),
        ({"eval_sets": {"test": lambda: list(zip(X, Y, strict=True))}}, "found 5, no, 5, no, 5, no and 200 more"),
        ({"eval_sets": {"test": lambda: iter([(X, Y[:9])])}, "batch_size": None}, "found 103, 9"),
        ({"eval_sets": {"test": lambda: iter([(X[0], 1), (X[0, :2], 1)])}}, "element 1 of its iterator"),
        ({"eval_sets": {"test": lambda: 5}}, "expected arrays"),
        ({"eval_sets": {"test": lambda: (np.array([object()]), [1])}}, "neither numbers nor text"),
        ({"eval_sets": {"test": data.tfrecords("x")}}, "TFRecord files need framework = 'tensorflow'"),
        ({"eval_sets": {"test": lambda: X}}, "found x alone. Let the source return both, such as lambda: (x, y)"),
    ],
)
def test_mistakes_are_told_in_one_sentence(checkpoint, tmp_path, changes, words):
    assert words in refused(task(**changes), checkpoint, tmp_path / "a")


def test_the_same_iterator_each_time_is_refused(checkpoint, tmp_path):
    made = examples()
    assert "the same iterator each time" in refused(task(lambda: made), checkpoint, tmp_path / "a")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_functions_of_other_libraries_get_all_examples(checkpoint, tmp_path, ranks):
    """The area under the curve of scikit-learn for several classes, next to a metric that adds up."""
    from sklearn.metrics import cohen_kappa_score

    kappa = InTurn(lambda y, scores: cohen_kappa_score(y, scores.argmax(1)), name="kappa", goal="max")
    ends = run(task(metrics=lambda: [Accuracy(), kappa]), checkpoint, tmp_path / "a", ranks)
    right = cohen_kappa_score(Y, predict(np.load(checkpoint), X).argmax(1))
    assert [end.result.metrics["test"]["kappa"].value for end in ends] == [right] * ranks
    assert all("kappa is a function of all examples" in note for end in ends for note in end.result.notes)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_with_numbers_of_its_own_process_is_refused(checkpoint, tmp_path, ranks):
    """No checkpoint holds the projection that `load` draws without a seed; with one, all workers have the same."""

    def load(path, seed):
        return np.load(path), np.random.default_rng(seed).normal(size=(5, 5))

    def projected(model, x):
        return x @ model[1] @ model[0]

    seeds = iter(range(1, 99))
    unseeded = task(load=lambda path: load(path, next(seeds)), predict=projected)
    ends = run(unseeded, checkpoint, tmp_path / "a", ranks)
    assert [getattr(end, "kind", None) for end in ends] == ([None] if ranks == 1 else ["mismatch"] * ranks)
    seeded = task(load=lambda path: load(path, 3), predict=projected)
    ends = run(seeded, checkpoint, tmp_path / "b", ranks)
    assert len({str(end.result.metrics) for end in ends}) == 1


ROWS = [["a", "b"], ["c"], ["d", "e", "f"], ["g"], ["h", "i"]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("x", "size"),
    [
        (ROWS, len),
        (np.array(ROWS, object), len),
        ([np.ones(len(row)) for row in ROWS], len),
        ([{"words": row, "n": 1.5} for row in ROWS], lambda row: len(row["words"])),
        ({"text": ROWS, "other": list(range(5))}, None),
    ],
)
def test_rows_may_be_lists_of_any_lengths(checkpoint, tmp_path, ranks, x, size):
    """The model gets the rows as they are, and cannot change those of the next evaluation."""

    def predict(_model, given):
        rows = given["text"] if size is None else given
        found = np.array([(size or len)(row) for row in rows], float)
        if size is len and isinstance(rows[0], list):
            rows[0].append("more")
        return found

    sizes = np.array([len(row) for row in ROWS], float)
    made = task(lambda: (x, sizes), predict=predict, metrics=lambda: [MAE()], batch_size=2)
    for folder in ("a", "b"):
        ends = run(made, checkpoint, tmp_path / folder, ranks)
        assert [end.result.metrics["test"]["mae"].value for end in ends] == [0.0] * ranks


def test_rows_of_other_contents_differ(checkpoint, tmp_path, monkeypatch):
    """Two workers that have other words in one row do not evaluate together."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # another test of this process may have imported it
    numbers = iter(range(9))

    def source():
        rows = [list(row) for row in ROWS]
        rows[4][1] = str(next(numbers) // 2)
        return rows, np.ones(5)

    predict = lambda _, x: np.array([float(len(row)) for row in x])  # noqa: E731 - as users write it
    ends = run(task(source, predict=predict, metrics=lambda: [MAE()], batch_size=2), checkpoint, tmp_path / "a", 3)
    assert {end.kind for end in ends} == {"stream_differs"}
    assert all("reshuffle" not in str(end) for end in ends)


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_large_sums_are_told_with_the_remedy(checkpoint, tmp_path, ranks):
    """Whether one worker passes the limit or all together do."""
    for large in (np.int64(2**61), 2**70):
        metrics = [Sums(lambda *_, large=large: {"sum": large}, lambda totals: totals["sum"])]
        ends = run(task(metrics=lambda metrics=metrics: metrics), checkpoint, tmp_path / str(large), ranks)
        told = [str(end) for end in ends if end is not None]
        assert told
        assert all("float(total)" in text for text in told)


def test_a_split_at_random_is_refused_with_the_remedy(checkpoint, tmp_path):
    """It would evaluate examples that training has seen, and others in each process."""
    from sklearn.model_selection import train_test_split

    drawn = lambda: train_test_split(X, Y)[1::2]  # noqa: E731 - as users write it
    assert "train_test_split(…, random_state=0)" in refused(task(drawn), checkpoint, tmp_path / "a")
    seeded = lambda: train_test_split(X, Y, random_state=0)[1::2]  # noqa: E731
    assert run(task(seeded), checkpoint, tmp_path / "b")[0].result.examples == {"test": 26}

    def scratch():
        np.random.random()  # noqa: NPY002 - draws, but not the data
        return X, Y

    assert run(task(scratch), checkpoint, tmp_path / "c")[0].result.examples == {"test": 103}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"trees": 3}), "a pickle: write Task(load=joblib.load"),
        (zlib.compress(b"any"), "compressed file"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x93NUMPY\x01", "numpy.load"),
        (b"tree\nversion=v4", "lightgbm.Booster(model_file=path)"),
        (b'{"learner":{}}', "xgboost.Booster(model_file=path)"),
        (b"anything", ""),
    ],
)
def test_a_file_of_another_library_is_named_with_its_loader(tmp_path, monkeypatch, content, words):
    """A loader of one library gets what another one wrote."""
    (tmp_path / "trees.py").write_text("def load_model(path):\n    raise RuntimeError('Check failed: not a model')\n")
    monkeypatch.syspath_prepend(tmp_path)
    trees = importlib.import_module("trees")
    path = tmp_path / "model-1.bin"
    path.write_bytes(content)
    evaluator = PythonEvaluator.build(task(load=trees.load_model), Shard(0, 1), cache_bytes=1 << 20)
    with pytest.raises(RuntimeError) as caught:
        evaluator.restore(str(path))()
    sentence = as_failed(caught.value, phase="restore", plan=1, rank=0).message.splitlines()[0]
    assert words in sentence
    assert ("The file is" in sentence) == bool(words)


def test_a_checkpoint_that_is_gone_has_vanished(checkpoint, tmp_path):
    """So that it is not the task's fault."""
    checkpoint.unlink()
    (end,) = run(task(), checkpoint, tmp_path / "a")
    assert end.kind == "vanished"


def test_a_checkpoint_that_this_user_cannot_reach_has_not_vanished(checkpoint, tmp_path, monkeypatch):
    """Another node may be able to read it. Root can read everything, so the refusal is faked."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(path_alias.os, "scandir", refuse)
    (end,) = run(task(load=refuse), checkpoint, tmp_path / "a")
    assert end.kind == "storage"
    assert f"{checkpoint} cannot be reached: Permission denied" in str(end)


def test_a_checkpoint_that_is_replaced_before_it_is_hashed_is_refused(checkpoint, tmp_path):
    """Otherwise two ranks could agree on the digest of the new one, though one of them has loaded the old one."""

    def load(path):
        model = np.load(path)
        replace_file(path, model)
        return model

    def predict_and_write(model, x):
        np.save(checkpoint, model)
        return x @ model

    (end,) = run(task(load=load), checkpoint, tmp_path / "a")
    assert end.kind == "mismatch"
    assert str(checkpoint) in str(end)
    (end,) = run(task(predict=predict_and_write), checkpoint, tmp_path / "b")
    assert end.kind == "mismatch"


def replace_file(path, model):
    """As a trainer does it that keeps one name."""
    np.save(f"{path}.new.npy", -model)
    Path(f"{path}.new.npy").replace(path)


def test_a_file_that_load_adds_to_a_folder_changes_nothing(tmp_path):
    """Such as a cache; nor does it matter whether a checkpoint that was read is deleted."""
    folder = tmp_path / "model-1"
    folder.mkdir()
    np.save(folder / "weights.npy", np.ones((5, 3)))

    def load(path):
        if not (folder / "cache").exists():
            (folder / "cache").touch()
        return np.load(f"{path}/weights.npy")

    (plain,) = run(task(load=lambda path: np.load(f"{path}/weights.npy")), folder, tmp_path / "a")
    (end,) = run(task(load=load), folder, tmp_path / "b")
    assert end.result.variables == plain.result.variables

    def predict_and_delete(model, x):
        (folder / "weights.npy").unlink(missing_ok=True)
        return x @ model

    evaluator = PythonEvaluator.build(task(load=load, predict=predict_and_delete), Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(folder))()
    hashed = evaluator.digest()
    digest = hashed()
    evaluator.evaluate(lambda: None)
    assert hashed() == digest


def test_ranks_that_read_different_data_find_out(checkpoint, tmp_path):
    """In the hello, before there is a number."""
    calls = []

    def source():
        calls.append(1)
        generator = np.random.default_rng(threading.get_ident())
        return generator.permutation(X), Y

    ends = run(task(source), checkpoint, tmp_path / "a", ranks=2)
    assert [end.kind for end in ends] == ["stream_differs"] * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": None}, "give load"),
        ({"predict": None}, "give predict"),
        ({"metrics": None}, "needs metrics"),
        ({"build_model": print}, "Task(build_model=…)"),
        ({"loss": print}, "Task(loss=…)"),
        ({"load": 5}, "Task(load=…)"),
    ],
)
def test_a_task_says_one_thing(changes, words):
    with pytest.raises(TaskError) as caught:
        task(**changes)
    assert words in str(caught.value)


def test_a_task_is_of_one_framework():
    traits_of("python").require(task())
    traits_of("tensorflow").require(Task(print, {"test": print}))
    for wrong, framework in ((task(), "tensorflow"), (Task(print, {"test": print}), "python")):
        with pytest.raises(TaskError) as caught:
            traits_of(framework).require(wrong)
        assert "framework = 'python'" in str(caught.value)


def test_no_framework_is_imported():
    """Unless the task does: a worker process is ready in a fraction of a second."""
    program = "import sys, sidecar.evaluation.dispatcher as _; from sidecar.evaluation.backend import backend; "
    program += "backend('python'); import sidecar.metrics; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "numpy" in imported
    assert imported.isdisjoint({"tensorflow", "keras", "tf_keras", "torch", "jax", "sklearn", "h5py", "joblib"})


def test_the_profile_names_the_libraries_that_compute():
    """Equal on every call, whatever was imported meanwhile."""
    made = backend("python")
    check = Check(task="t", framework="python", search_path=".", threads=2)
    profile = made.profile(check)
    assert f"numpy {np.__version__}" in profile["libraries"]
    assert profile["threads"] == "2"
    assert made.profile(check) == profile == backend("python").profile(replace(check, task="u"))


@pytest.mark.tensorflow
def test_counts_are_those_of_tensorflow(checkpoint, tmp_path, evaluate):
    """The same examples and predictions: every state that counts is equal, and so are the numbers made of them."""
    import keras

    from sidecar import results

    model = np.load(checkpoint).astype(np.float32)
    x = X.astype(np.float32)
    scores = x @ model  # computed once: frameworks may round a product differently

    def build():
        return keras.Sequential([keras.Input((3,)), keras.layers.Activation("linear")])

    chosen = {"metrics": lambda: [Accuracy()], "batch_size": 16}
    theirs = evaluate(
        Task(build, {"test": lambda: (scores, Y, WEIGHTS)}, restore=lambda *_: None, **chosen), str(checkpoint), ranks=2
    )
    ours = run(
        task(lambda: (scores, Y, WEIGHTS), predict=lambda _, x: x, **chosen), checkpoint, tmp_path / "a", ranks=2
    )
    assert ours[0].result.metrics["test"]["accuracy"] == theirs["accuracy"]
    states = results.read(tmp_path / "a").states["test"]
    assert int(states["examples"].integers()) == theirs.examples["test"]
    assert ours[0].result.data["test"].fingerprint == theirs.streams[0][0].fingerprint


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("form", ["arrays", "iterator", "prepared"])
def test_numbers_of_examples_are_no_weights(checkpoint, tmp_path, form, ranks):
    """A third part that counts the examples is refused with the remedy; masks are weights, and a note says so."""

    def source(third):
        examples = lambda: zip(X, Y, third, strict=True)  # noqa: E731
        return {
            "arrays": lambda: (X, Y, third),
            "iterator": examples,
            "prepared": EvalSet(lambda: np.arange(len(X)), prepare=lambda at: (X[at], Y[at], third[at])),
        }[form]

    for end in run(task(source(np.arange(len(X)))), checkpoint, tmp_path / "refused", ranks):
        assert "(x, y) alone" in str(end)
    for end in run(task(source(np.arange(len(X)) % 2)), checkpoint, tmp_path / "taken", ranks):
        assert any("third part of each batch" in note for note in end.result.notes)


def test_a_label_that_is_taken_for_a_weight(checkpoint, tmp_path):
    """Two inputs and a label give an error about shapes, which names what was taken for the weight."""
    (end,) = run(task(lambda: (X, X, Y)), checkpoint, tmp_path / "states")
    assert "((x1, x2), y)" in str(end)


def test_a_task_asks_for_its_metrics_in_turn(checkpoint, tmp_path):
    """Worker 0 evaluates the set alone, with a note; a name that no metric has is refused."""
    expected = run(task(), checkpoint, tmp_path / "divided", 1)[0].result.metrics
    ends = run(task(in_turn=["accuracy"]), checkpoint, tmp_path / "in turn", 2)
    for done in ends:
        assert done.result.metrics == expected
        assert "accuracy: worker 0 evaluates this set alone" in done.result.notes[0]
    evaluator = PythonEvaluator.build(task(in_turn=True), Shard(1, 2), cache_bytes=0)
    assert evaluator.read(lambda: None)[0].own_batches == 0
    with pytest.raises(TaskError, match=r"'acuracy'.*'accuracy'"):
        PythonEvaluator.build(task(in_turn=["acuracy"]), Shard(0, 1), cache_bytes=0)
