"""Examples with NaN or infinite numbers: how many, which is the first, whoever evaluates them and how often."""

import numpy as np
import pytest

from sidecar import EvalSet, Shard, Task
from sidecar.evaluation.backend import Stream
from sidecar.evaluation.data import nonfinite
from sidecar.evaluation.data.nonfinite import NonfiniteCounter
from sidecar.evaluation.failures import EvaluationError
from sidecar.protocol.records import Nonfinite

EXAMPLES, BATCH = 21, 4

FOUND = {"input": Nonfinite(3, 1, 6), "label": Nonfinite(1, 2, 9), "weight": Nonfinite(1, 5, 20)}

PREDICTED = FOUND | {"prediction": Nonfinite(3, 1, 6)}


def reduced(*ranks):
    """The states of some ranks' finds, added up."""
    states = [nonfinite.states(Shard(rank, len(ranks)), each) for rank, each in enumerate(ranks)]
    for name, state in states[0].items():
        state.unpack(np.sum([each[name].pack() for each in states], axis=0))
    return {"test": states[0]}


def rows(*bad, count=BATCH):
    return ~np.isin(np.arange(count), bad)


def test_counted_and_located_over_ranks():
    """Tensors of one place count an example once; the first is the first of all ranks."""
    first, second, empty = NonfiniteCounter(), NonfiniteCounter(), NonfiniteCounter()
    first.add("input", [rows(3), rows(2, 3)], BATCH, 2, 8)
    first.add("input", [rows(0)], BATCH, 4, 16)
    first.add("prediction", [rows(), rows(1, count=7), np.array(False)], BATCH, 4, 16)  # rows of no examples
    second.add("input", [rows(1)], BATCH, 3, 12)
    second.add("label", [rows(0, count=1)], 1, 5, 2**60)
    stream = Stream(eval_set="test", fingerprint="abc", batches=6, examples=21, own_batches=3)
    found = {"input": Nonfinite(4, 2, 10), "label": Nonfinite(1, 5, 2**60)}
    assert nonfinite.totals([stream], reduced(first, second, empty)) == {"test": found}
    assert nonfinite.totals([stream], reduced(empty, empty)) == {}
    assert not any(state.used().any() for state in nonfinite.states(Shard(0, 1), empty).values()), "nothing travels"


def test_refused():
    """Data may not hold any where the task says so; predictions may."""
    finds = NonfiniteCounter()
    finds.add("prediction", [rows(1)], BATCH, 0, 0)
    stream = Stream(
        eval_set="test",
        fingerprint="abc",
        batches=6,
        examples=21,
        own_batches=3,
        refuses_nonfinite=True,
    )
    assert list(nonfinite.totals([stream], reduced(finds))["test"]) == ["prediction"]
    finds.add("label", [rows(1, 2)], BATCH, 1, 4)
    with pytest.raises(EvaluationError) as refused:
        nonfinite.totals([stream], reduced(finds))
    assert refused.value.kind == "nonfinite_input"
    assert str(refused.value).startswith(
        "eval set 'test': 2 examples have NaN or infinite labels, the first is example 5 (batch 1), counted from 0, "
        "and EvalSet(nonfinite='refuse') allows none: fix the data"
    )


@pytest.fixture(scope="module")
def arrays():
    """Inputs (21, 3), labels (21, 1) and weights (21,) with what is in FOUND."""
    x, y, weights = np.ones((EXAMPLES, 3), "float32"), np.ones((EXAMPLES, 1), "float32"), np.ones(EXAMPLES, "float32")
    x[[6, 7, 13], [0, 1, 2]] = np.nan, np.inf, -np.inf
    y[9], weights[20] = np.inf, np.nan
    return x, y, weights


def dense(of, dtype="float32"):
    def build():
        return of.Sequential([of.layers.Input((3,)), of.layers.Dense(1, kernel_initializer="ones", dtype=dtype)])

    return build


def task(build, source, **changes):
    import keras

    given = {"metrics": None, "loss": keras.losses.MeanSquaredError(), "batch_size": BATCH, "restore": lambda *_: None}
    return Task(build_model=build, eval_sets={"test": source}, **given | changes)


def of_shard(arrays):
    def source(shard: Shard):
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(arrays).shard(shard.world_size, shard.rank)

    return source


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "cache_bytes"),
    [
        ("plain", 0),
        ("plain", 1 << 20),
        ("prepared", 1 << 20),
        ("own", 0),
        pytest.param("prepared", 0, marks=pytest.mark.nightly),
        pytest.param("own", 1 << 20, marks=pytest.mark.nightly),
    ],
)
def test_every_way_of_reading(digits, arrays, evaluate, kind, cache_bytes):
    """Kept in memory or read again, prepared or not: the same for 1 and 2 ranks and for the second checkpoint."""
    import keras

    del digits
    source = {
        "plain": lambda: arrays,
        "prepared": EvalSet(lambda: arrays, prepare=lambda *example: example),
        "own": of_shard(arrays),
    }[kind]
    expected = PREDICTED
    if kind == "own":  # nobody knows the number of an example
        expected = {place: Nonfinite(each.examples, None, None) for place, each in PREDICTED.items()}
    for ranks in (1, 2):
        found = evaluate(task(dense(keras), source), "a", "b", ranks=ranks, cache_bytes=cache_bytes)
        assert [each.nonfinite for each in found] == [{"test": expected}] * 2


@pytest.mark.tensorflow
def test_second_checkpoint_diverged(digits, evaluate):
    """Data that are kept are not looked at again, predictions are; labels of integers have nothing to look at."""
    import keras

    del digits

    def restore(model, path):
        model.set_weights([np.full((3, 1), float(path), "float32"), np.zeros(1, "float32")])

    data = np.ones((EXAMPLES, 3), "float32"), np.ones((EXAMPLES, 1), "int64")
    found = evaluate(task(dense(keras), lambda: data, restore=restore), "1", "nan", "2", ranks=2)
    assert [each.nonfinite for each in found] == [{}, {"test": {"prediction": Nonfinite(21, 0, 0)}}, {}]


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@pytest.mark.parametrize("is_own_step", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models(digits, arrays, evaluate, name, is_own_step):
    """Keras' own step shows what it predicts; a custom one that does not call `compute_metrics` keeps it to itself."""
    of = pytest.importorskip(name)
    del digits

    class OwnStep(of.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.mean = of.layers.Dense(1, kernel_initializer="ones"), of.metrics.Mean(name="mean")

        def call(self, x):
            return self.dense(x)

        def test_step(self, data):
            self.mean.update_state(self(data[0], training=False))
            return {"mean": self.mean.result()}

    def build():
        model = OwnStep() if is_own_step else dense(of)()
        model.compile(loss=None if is_own_step else "mse")
        return model

    found = evaluate(task(build, lambda: arrays, loss=None), "a", "b", ranks=2)
    assert [each.nonfinite for each in found] == [{"test": FOUND if is_own_step else PREDICTED}] * 2
    assert "compute_metrics" not in vars(build())


@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types_of_floats(digits, evaluate, dtype):
    """In inputs and in predictions; the largest finite number is one."""
    import keras
    import tensorflow as tf

    del digits
    x = tf.fill((EXAMPLES, 3), tf.constant(tf.as_dtype(dtype).max, dtype))
    x = tf.tensor_scatter_nd_update(x, [[6, 0]], tf.constant([np.nan], dtype))
    build = lambda: keras.Sequential([keras.layers.Input((3,), dtype=dtype), keras.layers.Identity(dtype=dtype)])  # noqa: E731
    source = lambda: tf.data.Dataset.from_tensor_slices((x, np.zeros((EXAMPLES, 3), dtype="int32")))  # noqa: E731
    loss = lambda y, _: tf.zeros(tf.shape(y)[0])  # noqa: E731
    found = evaluate(task(build, source, loss=loss), "a", ranks=2)
    assert found.nonfinite["test"] == {"input": Nonfinite(1, 1, 6), "prediction": Nonfinite(1, 1, 6)}
