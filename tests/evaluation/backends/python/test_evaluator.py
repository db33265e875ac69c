"""The python backend without processes: any data that numpy can hold, any model, and the same bits for all ranks."""

import pathlib
import random
import threading
import warnings

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    GENERATOR,
    Confident,
    X,
    Y,
    _with_nan,
    evaluate_alone,
    examples,
    predict_anyway,
    refused,
    run,
    task,
)

from sidecar import EvalSet, data
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import as_failed
from sidecar.metrics import AUC, Accuracy, Mean, Sums

WEIGHTS = GENERATOR.random(103).astype(np.float32)

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


def test_groups_of_examples_make_longer_intervals(checkpoint, tmp_path):
    """Equal bits for one, two and three ranks; a function of a list, or an array."""
    groups = np.arange(103) // 4
    share = Sums(lambda y, _: {"ones": (y == 1).sum(), "all": len(y)}, lambda totals: totals["ones"] / totals["all"])
    metrics = {"metrics": lambda: [Accuracy(), AUC(1), share]}
    found = [
        run(task(EvalSet(lambda: (X, Y), groups=given), **metrics), checkpoint, tmp_path / str(ranks), ranks)[0]
        for ranks, given in ((1, groups), (2, lambda: [f"patient {number}" for number in groups]), (3, groups))
    ]
    found = [each.result.metrics for each in found]
    alone = run(task(**metrics), checkpoint, tmp_path / "alone", 1)[0].result.metrics
    assert found[0] == found[1] == found[2]
    for metric, value in found[0]["test"].items():
        assert value.hex == alone["test"][metric].hex
        assert None is not value.lower != alone["test"][metric].lower


@pytest.mark.parametrize("ranks", [1, 2])
def test_groups_may_be_a_column(checkpoint, tmp_path, ranks):
    """Texts or numbers, with the intervals that the keys give."""
    groups = np.array([f"patient {number // 4}" for number in range(103)])
    given = {"predict": lambda model, x: x["x"] @ model}
    source = lambda: ({"x": X, "patient": groups}, Y)  # noqa: E731 - the same for both
    one, other = (
        run(task(EvalSet(source, groups=keys), **given), checkpoint, tmp_path / str(place), ranks)[0].result.metrics
        for place, keys in enumerate(("patient", groups))
    )
    assert one == other
    assert one["test"]["accuracy"].lower is not None


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("patient_id", np.arange(103) // 4, "'patient_id' has 26 keys for 103 examples"),
        ("Speaker", [f"s{number % 5}" for number in range(103)], "groups='Speaker'"),
        ("patient", np.arange(103), None),
        ("item_id", np.arange(103) // 4, None),
        ("doc", np.arange(103)[:, np.newaxis] // 4 / 8, None),
    ],
)
def test_keys_that_repeat_without_groups_are_noted(checkpoint, tmp_path, name, keys, told):
    """With the line to write; not for keys of single examples, and columns that hold anything else."""
    data = {"x": X, name: np.asarray(keys)}
    given = {"predict": lambda model, x: x["x"] @ model}
    notes = run(task(EvalSet(lambda: (data, Y)), **given), checkpoint, tmp_path, 2)[0].result.notes
    assert [note for note in notes if told and told in note] == list(notes)
    assert bool(notes) == bool(told)


@pytest.mark.parametrize(
    ("source", "groups", "words"),
    [
        (lambda: (X, Y), "patient", "no column 'patient'"),
        (SOURCES["divided"].source, "patient", "no worker reads all"),
        (lambda: (X, Y), [1, 2], "each of 103 examples, found 2"),
        (lambda: (X, Y), [[1]] * 103, "one key for each example"),
        (SOURCES["divided"].source, np.zeros(103), "divides itself"),
    ],
)
def test_impossible_groups_are_refused(checkpoint, tmp_path, source, groups, words):
    """With the remedy."""
    assert words in refused(task(EvalSet(source, groups=groups)), checkpoint, tmp_path)


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
    assert [end.kind for end in ends] == (["task_error"] if ranks == 1 else ["mismatch"] * ranks)
    assert ranks > 1 or "a second model" in str(ends[0])
    seeded = task(load=lambda path: load(path, 3), predict=projected)
    ends = run(seeded, checkpoint, tmp_path / "b", ranks)
    assert len({str(end.result.metrics) for end in ends}) == 1


@pytest.mark.parametrize("batch_size", [7, 64])
@pytest.mark.parametrize("kept", ["mean", "draw"])
def test_what_a_model_keeps_of_the_first_examples_is_refused_by_one_worker(checkpoint, tmp_path, kept, batch_size):
    """It predicts the same each time, so only a second model that sees other examples first shows it."""

    class Kept:
        def __init__(self, path):
            self.weights, self.shift = np.load(path), None

        def predict(self, x):
            if self.shift is None:
                self.shift = x.mean(axis=0) if kept == "mean" else np.array([random.Random().random()] * x.shape[1])
            return (x - self.shift) @ self.weights

    given = task(load=Kept, predict=lambda model, x: model.predict(x), batch_size=batch_size)
    assert "a second model" in refused(given, checkpoint, tmp_path / "a")


def test_what_a_function_keeps_of_the_first_examples_is_refused_by_two_workers(checkpoint, tmp_path):
    """Each process has its own variables, and workers see other examples first; a single worker cannot know."""
    kept = threading.local()  # a thread stands for each worker

    def predict(model, x):
        if not hasattr(kept, "mean"):
            kept.mean = x.mean(axis=0)
        return (x - kept.mean) @ model

    given = task(predict=predict, batch_size=16)
    assert [end.kind for end in run(given, checkpoint, tmp_path / "a", 2)] == ["mismatch"] * 2


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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_set_with_its_own_metrics(checkpoint, tmp_path, ranks):
    """It has none of the task's, and another one stays as it is: each as if it were alone."""
    own = EvalSet(lambda: (X, Y), metrics=lambda: [Mean(lambda _, scores: scores.min(axis=1), name="least")])
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    alone = run(task(eval_sets={"own": own}, metrics=None), checkpoint, tmp_path / "one")[0].result
    found = run(task(eval_sets={"test": lambda: (X, Y), "own": own}), checkpoint, tmp_path / "many", ranks)[0].result
    assert found.metrics["own"] == alone.metrics["own"]
    assert [sorted(values) for values in found.metrics.values()] == [["accuracy", "mean"], ["least"]]


class Table:
    """A table like one of pandas: an array, and the names of its columns."""

    def __init__(self, names):
        self.columns = list(names)

    def __array__(self, dtype=None, copy=None):
        return X[:, ["abcde".index(name) for name in self.columns]]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_columns_have_the_order_that_the_model_has_learned(tmp_path):
    """A model of scikit-learn would refuse a table of another order, and cannot tell that of an array."""
    import pickle

    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(X, Y)
    model.feature_names_in_ = np.array(list("abcde"), object)
    checkpoint = tmp_path / "m-1.pkl"
    checkpoint.write_bytes(pickle.dumps(model))

    def given(names, predict):
        return task(
            lambda: (Table(names), Y),
            load=lambda path: pickle.loads(pathlib.Path(path).read_bytes()),
            predict=predict,
            metrics=lambda: [Accuracy()],
        )

    def with_names(model, x):
        with warnings.catch_warnings():  # as a table of pandas with names would not warn
            warnings.simplefilter("ignore")
            return model.predict_proba(x[:, ::-1])

    def plain(model, x):
        return model.predict_proba(x)

    for folder in ("other", "same", "own"):
        (tmp_path / folder).mkdir()
    message = refused(given("edcba", plain), checkpoint, tmp_path / "other")
    assert "return x[['a', 'b', 'c', 'd', 'e']]" in message
    for folder, names, predict in (("same", "abcde", plain), ("own", "edcba", with_names)):
        (end,) = run(given(names, predict), checkpoint, tmp_path / folder)
        assert end.result.metrics["test"]["accuracy"].value == model.score(X, Y)


def test_a_model_that_needs_names_gets_the_line_to_write(checkpoint):
    """The error of the library speaks of a table, which the task has given."""

    def predict(*_):
        raise ValueError("Specifying the columns using strings is only supported for dataframes.")

    with pytest.raises(ValueError, match="only supported for dataframes") as caught:
        evaluate_alone(task(lambda: (Table("abcde"), Y), predict=predict), checkpoint)
    message = as_failed(caught.value, phase="evaluate", plan=1, rank=0).message
    assert "pandas.DataFrame(x, columns=['a', 'b', 'c', 'd', 'e'])" in message


def test_rows_of_unequal_length_get_a_way_out(checkpoint, tmp_path):
    """Boxes of an image, for example."""
    message = refused(task(predict=lambda _, x: [[1.0] * (1 + at % 2) for at in range(len(x))]), checkpoint, tmp_path)
    assert "pad the rows" in message


KEPT = {}


def near_prompts(model, x):
    """Similarity to embeddings that are computed once."""
    return x @ model @ KEPT.setdefault("only", X[:3] @ model).T


def test_what_predict_keeps_of_a_model_is_set_back(tmp_path):
    """The process stays alive for the second checkpoint, and its numbers are those of a new process."""
    made = task(predict=near_prompts, metrics=lambda: [Mean(lambda _, scores: scores.max(axis=1))])
    evaluator = PythonEvaluator.build(made, Shard(0, 1), cache_bytes=1 << 20)
    for seed in (1, 2):
        weights = np.random.default_rng(seed).normal(size=(5, 3))
        np.save(tmp_path / f"step-{seed}.npy", weights)
        evaluator.read(lambda: None)
        evaluator.restore(str(tmp_path / f"step-{seed}.npy"))()
        evaluator.digest()()
        found = evaluator.compute(evaluator.evaluate(lambda: None))["test"].values["mean"].value
        right = np.mean([max(x @ weights @ (X[:3] @ weights).T) for x in X])
        assert found == pytest.approx(right, rel=1e-12)


def test_what_predict_keeps_of_the_first_examples_is_found_by_one_worker(checkpoint, tmp_path):
    """Their mean in a global variable: a second model that sees other examples first has another one."""
    KEPT.clear()

    def centred(model, x):
        return (x - KEPT.setdefault("mean", x.mean(axis=0))) @ model

    assert "sees other examples first" in refused(task(predict=centred), checkpoint, tmp_path)
