"""Numbers by slice of metrics of Keras, for metrics of the task and of a compiled model."""

import importlib
from itertools import pairwise

import numpy as np
import pytest

from sidecar import EvalSet, Task
from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.slice_table import SliceTable
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES = 103
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(EXAMPLES, 3)).astype("float32")
CLASSES = (X + RANDOM.normal(size=X.shape)).argmax(1)
LABELS = {"kind": CLASSES, "score": (CLASSES[:, None] == 1).astype("float32")}
WEIGHTS = RANDOM.exponential(size=EXAMPLES).astype("float32")
SLICES = {"left": lambda x, _: x[:, 0] < 0, "part": np.arange(EXAMPLES) * 7 % 4, "empty": [False] * EXAMPLES}
ROWS = {"left": X[:, 0] < 0} | {f"part={part}": np.arange(EXAMPLES) * 7 % 4 == part for part in range(4)}


def root_of(of):
    """Return a metric of one's own, whose number is a formula of its sums."""

    class Root(of.metrics.Metric):
        def __init__(self):
            super().__init__(name="root")
            self.squares = self.add_weight(name="squares", initializer="zeros")
            self.count = self.add_weight(name="count", initializer="zeros")

        def update_state(self, y, predictions, sample_weight=None):
            squares = (y - predictions)[:, 0] ** 2
            weights = 0 * squares + (1 if sample_weight is None else sample_weight)
            self.squares.assign_add(_sum(weights * squares))
            self.count.assign_add(_sum(weights))

        def result(self):
            return (self.squares / self.count) ** 0.5

    return Root()


def _sum(tensor):
    import tensorflow as tf

    return tf.reduce_sum(tensor)


def metrics(of):
    return {
        "kind": [of.metrics.SparseCategoricalAccuracy(name="accuracy"), of.metrics.SparseTopKCategoricalAccuracy(2)],
        "score": [
            of.metrics.AUC(name="auc"),
            of.metrics.F1Score(name="f1", threshold=0.5, average="macro"),
            of.metrics.BinaryIoU(name="iou", dtype="float32"),
            of.metrics.Precision(name="precision"),
            root_of(of),
        ],
    }


def build(of):
    x = of.Input((3,))
    kind = of.layers.Dense(3, activation="softmax", kernel_initializer="identity", name="kind")(x)
    score = of.layers.Lambda(lambda scores: scores[:, 1:2], output_shape=(1,), name="score")(kind)
    return of.Model(x, {"kind": kind, "score": score})


def compiled(of, **more):
    model, listed = build(of), metrics(of)
    model.compile(
        loss={"kind": "sparse_categorical_crossentropy", "score": "mse"},
        weighted_metrics={"kind": listed["kind"][:1], "score": [listed["score"][0], listed["score"][-1]]},
        metrics={"score": of.metrics.TruePositives(name="hits")},
        **more,
    )
    return model


def task(data, model=build, listed=metrics, of=None, **more):
    of = of or importlib.import_module("keras")
    made = listed and (lambda: listed(of))
    sets = {"test": EvalSet(lambda: data, slices=more.pop("slices", SLICES))}
    more.setdefault("intervals", False)
    return Task(lambda: model(of), sets, made, batch_size=16, restore=lambda *_: None, **more)


def by_slice(evaluated):
    """Return the numbers of each slice by the plain names of the metrics."""
    return {
        label: {name.removeprefix("compile_metrics_"): each for name, each in numbers.items()}
        for label, numbers in evaluated.slices["test"].items()
    }


def of_rows(of, data, rows):
    """Return the numbers that Keras itself has for these rows alone."""
    x, y, *weights = data
    predictions, found = build(of)(x[rows]), {}
    for output, listed in metrics(of).items():
        for metric in listed:
            metric.update_state(y[output][rows], predictions[output], *(each[rows] for each in weights))
            found[f"{output}_{metric.name}"] = float(metric.result())
    return found


@pytest.mark.parametrize(
    ("data", "ranks"), [((X, LABELS), (1, 5)), ((X, LABELS, WEIGHTS), (1, 2, 3))], ids=["plain", "weighted"]
)
@pytest.mark.drawn(1)
def test_each_slice_has_the_numbers_that_keras_has_for_its_rows(evaluate, data, ranks):
    """The same bits for any number of workers; those of the set are the ones without slices."""
    import keras

    found = [evaluate(task(data), "nowhere", ranks=count) for count in ranks]
    slices = found[0].slices["test"]
    assert all((each.values, each.slices) == (found[0].values, found[0].slices) for each in found)
    assert slices.keys() == ROWS.keys(), "no example is in the slice 'empty'"
    for label, rows in ROWS.items():
        numbers = {name: each.value for name, each in slices[label].items()}
        assert numbers == pytest.approx(of_rows(keras, data, rows), rel=1e-6)
    assert slices["left"]["score_auc"].goal == "max", "so it has a worst slice"
    plain = evaluate(task(data, slices={}), "nowhere")
    assert plain.hexes == found[0].hexes
    assert not any("by slice" in note for note in found[0].notes + plain.notes)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.drawn(1)
def test_metrics_of_a_compiled_model(evaluate, library):
    """Traced or run eagerly; a loss that is one number for a batch has none, which a note says."""
    of, data = importlib.import_module(library), (X, LABELS, WEIGHTS)[: 3 if library == "keras" else 2]
    traced = [evaluate(task(data, compiled, None, of), "nowhere", ranks=ranks) for ranks in (1, 3)]
    assert traced[0].slices == traced[1].slices
    eager = evaluate(task(data, lambda of: compiled(of, run_eagerly=True), None, of), "nowhere")
    for label, rows in ROWS.items():
        alone = of_rows(of, data, rows)
        wanted = {name: alone[name] for name in ("kind_accuracy", "score_auc", "score_root")}
        wanted["score_hits"] = float((LABELS["score"] * HITS)[rows].sum())
        for found in (traced[0], eager):
            numbers = {name: each.value for name, each in by_slice(found)[label].items()}
            assert numbers == pytest.approx(wanted, rel=1e-6)
    (note,) = [note for note in traced[0].notes if "by slice" in note]
    assert note.startswith("no numbers by slice: loss, ")


HITS = X[:, 1:2] - np.log(np.exp(X).sum(1, keepdims=True)) > np.log(0.5)


def odd_of(of):
    """Return metrics that have no numbers by slice, and one that has."""

    class OfBatches(of.metrics.Mean):
        def update_state(self, _, predictions):
            super().update_state(_sum(predictions) / _sum(predictions * 0 + 1))

    class Largest(of.metrics.Metric):
        sidecar_reduction = "max"

        def __init__(self):
            super().__init__(name="largest")
            self.largest = self.add_weight(name="largest", initializer="zeros")

        def update_state(self, _, predictions):
            self.largest.assign(of.ops.maximum(self.largest, of.ops.max(predictions)))

        def result(self):
            return self.largest + 0

    class Pairs(of.metrics.Metric):
        """Adds what neighbours in a batch share, so the order of rows counts."""

        def __init__(self):
            super().__init__(name="pairs")
            self.shared = self.add_weight(name="shared", initializer="zeros")

        def update_state(self, _, predictions):
            self.shared.assign_add(_sum(predictions[1:] * predictions[:-1]))

        def result(self):
            return self.shared + 0

    listed = [OfBatches(name="means"), Largest(), Pairs(), of.metrics.MeanIoU(300, name="wide")]
    return {"score": [*listed, of.metrics.AUC(name="auc")]}


def test_metrics_without_numbers_by_slice(evaluate):
    """Means over batches, extremes, sums over neighbours and large states: a note names them, no number is wrong."""
    found = evaluate(task((X, LABELS), listed=odd_of), "nowhere", ranks=2)
    assert all(numbers.keys() == {"score_auc"} for numbers in found.slices["test"].values())
    (note,) = [note for note in found.notes if "by slice" in note]
    assert note.startswith("no numbers by slice: score_means, score_largest, score_pairs, score_wide;")


def stepping(of, *, in_branch):
    """Return a compiled model whose step updates a metric twice, or in a branch, and another one once."""
    import tensorflow as tf

    class Stepping(of.Sequential):
        def __init__(self):
            super().__init__([of.Input((3,)), of.layers.Dense(3, kernel_initializer="identity")])
            self.odd, self.single = of.metrics.Mean(name="odd"), of.metrics.SparseCategoricalAccuracy(name="single")

        def test_step(self, data):
            x, y = data
            predictions = self(x, training=False)
            self.single.update_state(y, predictions)
            if in_branch:
                tf.cond(_sum(predictions) < 1e9, lambda: self.note(predictions[:, 0] + 1), lambda: 0)
            else:
                self.odd.update_state(predictions[:, 0])
                self.odd.update_state(predictions[:, 1])
            return {each.name: each.result() for each in (self.odd, self.single)}

        def note(self, values):
            self.odd.update_state(values)
            return 0

    model = Stepping()
    model.compile()
    return model


def test_a_metric_that_is_updated_twice_or_in_a_branch(evaluate):
    """It has no numbers by slice, next to one that has; only a trace tells of a branch, so that is refused."""
    found = evaluate(task((X, CLASSES), lambda of: stepping(of, in_branch=False), None), "nowhere", ranks=2)
    assert all(numbers.keys() == {"single"} for numbers in found.slices["test"].values())
    assert any(note.startswith("no numbers by slice: odd;") for note in found.notes)
    with pytest.raises(TaskError, match="'odd'"):
        evaluate(task((X, CLASSES), lambda of: stepping(of, in_branch=True), None), "nowhere")


def test_masked_positions_do_not_count(evaluate):
    """The mask of the predictions is cut like them."""
    x = RANDOM.integers(0, 4, (EXAMPLES, 5)) * (np.arange(5) < RANDOM.integers(1, 6, (EXAMPLES, 1)))
    y = RANDOM.integers(0, 3, (EXAMPLES, 5))

    def model(of):
        return of.Sequential([of.Input((5,)), of.layers.Embedding(4, 3, mask_zero=True, embeddings_initializer=values)])

    def listed(of):
        return [of.metrics.SparseCategoricalAccuracy(name="accuracy")]

    found = evaluate(task((x, y), model, listed, slices={"part": SLICES["part"]}), "nowhere", ranks=2)
    for label, rows in list(ROWS.items())[1:]:
        hits = (values((4, 3))[x[rows]].argmax(-1) == y[rows])[x[rows] != 0]
        assert found.slices["test"][label]["accuracy"].value == pytest.approx(hits.mean(), rel=1e-6)


def values(shape, dtype="float32"):
    """Return the predictions for each of four words."""
    return np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 2, 0]], dtype).reshape(shape)


def test_arguments_are_read_where_slices_need_them():
    """Not for a set without slices, and nothing is returned by the step of a task without any."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.step import Step

    first = tf.nest.map_structure(tf.constant, (X, LABELS))
    spec = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), first)

    def needed(**more):
        step = Step(task((X, LABELS), **more), build(keras), first, spec, lambda: None, autograph=False)
        inputs = step.measurement.inputs
        return bool(inputs), inputs.are_needed(step.measurement.states(EvalSetInfo(EXAMPLES, Shard(0, 1))))

    assert needed() == (True, False)
    assert needed(slices={}) == (False, False)


def test_batches_of_several_lengths_and_a_formula_that_looks_at_numbers():
    """One trace takes batches of any length, and a result that no trace can compute is computed without."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
    from sidecar.evaluation.backends.tensorflow.sliced_metric import SlicedMetric

    class Looking(keras.metrics.BinaryAccuracy):
        def result(self):
            return tf.constant(self.total.numpy() / max(self.count.numpy(), 1))

    metric = Looking(name="looking")
    lengths = {4: 3, 5: 2}  # of the examples of a batch
    ys, scores = ([RANDOM.integers(0, 2, shape).astype("float32") for shape in lengths.items()] for _ in range(2))
    metric.update_state(ys[0], scores[0])
    whole, first = KerasMetric(metric), [tf.constant(ys[0]), tf.constant(scores[0])]
    cut = SlicedMetric(whole, first, ())
    assert cut.can_be_cut(first, 1e-4)
    tf.function(lambda *tensors: cut.prepare(tensors, tf.shape(tensors[0])[0])).get_concrete_function(
        *[tf.TensorSpec([None, None])] * 2
    )
    table = SliceTable("test", {"part": [0, 1, 0, 1, 0, 0, 1, 1, 1]})
    table.begin(9, is_whole=True)
    table.put(None, 0, 9)
    states = cut.states(EvalSetInfo(9, Shard(0, 1), slices=table))
    cut.add(states, [ys, scores], list(lengths), [0, 4])
    found = cut.with_slices(MetricResult({"looking": value(0.0, "max")}), states, "looking").slices
    rows = {"part=0": ([0, 2], [0, 1]), "part=1": ([1, 3], [2, 3, 4])}
    for label, parts in rows.items():
        hits = [(y[part] == each[part]).mean(1) for y, each, part in zip(ys, scores, parts, strict=True)]
        assert found[label]["looking"].value == pytest.approx(np.concatenate(hits).mean(), rel=1e-6)
    assert tf.compat.v1.get_variable_scope().caching_device is None  # else Keras 2 makes no variables any more


@pytest.mark.parametrize("is_own", [False, True])
def test_results_follow_from_the_sums_of_each_evaluation(is_own):
    """One trace has those of several evaluations; a formula of a user may look at what changes between them."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
    from sidecar.evaluation.backends.tensorflow.sliced_metric import SlicedMetric

    class Scaled(keras.metrics.F1Score):
        factor = 1.0

        def result(self):
            return super().result() * self.factor

    metric = (Scaled if is_own else keras.metrics.F1Score)(average="macro", threshold=0.5, name="f1")
    random, cut = np.random.default_rng(8), None
    for factor in (1.0, 0.5, 0.25):
        Scaled.factor = factor
        y = random.integers(0, 2, (60, 3)).astype("float32")
        scores = random.random((60, 3)).astype("float32")
        tensors = [tf.constant(y), tf.constant(scores)]
        if cut is None:
            metric.update_state(*tensors)
            cut = SlicedMetric(KerasMetric(metric), tensors, ())
            assert cut.can_be_cut(tensors, 1e-4)
        table = SliceTable("test", {"part": random.integers(0, 3, 60)})
        table.begin(60, is_whole=True)
        table.put(None, 0, 60)
        states = cut.states(EvalSetInfo(60, Shard(0, 1), slices=table))
        cut.add(states, [[y], [scores]], [60], [0])
        found = cut.with_slices(MetricResult({"f1": value(0.0, "max")}), states, "f1").slices
        for label, rows in table.of(np.arange(60)):
            plain = keras.metrics.F1Score(average="macro", threshold=0.5)
            plain.update_state(y[rows], scores[rows])
            wanted = float(plain.result()) * (factor if is_own else 1)
            assert found[label]["f1"].value == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", ["AUC", "F1Score", "CategoricalAccuracy", "Precision"])
def test_weights_are_exact_in_any_batch(kind):
    """A metric that adds up weights has the same bits, whether batches are added together or one after the other."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
    from sidecar.evaluation.backends.tensorflow.sliced_metric import SlicedMetric

    random = np.random.default_rng(6)
    y = np.eye(3, dtype="float32")[random.integers(0, 3, 200)]
    scores = random.dirichlet(np.ones(3), 200).astype("float32")
    weights = (random.exponential(size=200) * 10.0 ** random.integers(-6, 6, 200)).astype("float32")
    table = SliceTable("test", {"part": random.integers(0, 3, 200)})
    table.begin(200, is_whole=True)
    table.put(None, 0, 200)
    metric = getattr(keras.metrics, kind)()
    metric.update_state(y, scores, sample_weight=weights)
    whole, tensors = KerasMetric(metric), list(map(tf.constant, (y, scores, weights)))
    cut = SlicedMetric(whole, tensors, ("sample_weight",))
    assert cut.can_be_cut(tensors, 1e-4)
    found = []
    for ends in ([0, 200], [0, 30, 31, 120, 200]):
        states = cut.states(EvalSetInfo(200, Shard(0, 1), slices=table))
        parts = [[each[first:end] for first, end in pairwise(ends)] for each in (y, scores, weights)]
        cut.add(states, parts, np.diff(ends).tolist(), ends[:-1])
        found.append(states["by slice"].to_json())
        sums = dict(states["by slice"].items())
    assert found[0] == found[1]
    for label, rows in table.of(np.arange(200)):
        metric.reset_state()
        metric.update_state(y[rows], scores[rows], sample_weight=weights[rows])
        for array, name in zip(whole.values(), sums[label], strict=True):
            near = pytest.approx(array, rel=1e-5, abs=1e-6 * float(array.max()))  # float32 subtracts some of them
            assert sums[label][name].round() == near


def test_summands_of_weights_add_up_to_them():
    """Each has few bits, so that sums of many have no rounding; weights near 0 and infinite ones have none."""
    from sidecar.evaluation.backends.tensorflow.sliced_metric import summands_of

    weights = (RANDOM.normal(size=500) * 10.0 ** RANDOM.integers(-9, 9, 500)).astype("float32")
    summands = summands_of(weights, 9)
    assert np.array_equal(np.sum(np.array(summands, "float64"), 0), weights)
    for summand in summands:
        assert np.array_equal(np.cumsum(summand, dtype="float32"), np.cumsum(summand, dtype="float64"))
    assert summands_of(np.float32([1, 1e-38]), 9) is summands_of(np.float32([1, np.inf]), 9) is None
    assert [each.tolist() for each in summands_of(np.float32([0, 0]), 9)] == [[0, 0]]
