"""States that are no sums: declared ones travel as what they are, undeclared ones are found on the first batch."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

Y = np.arange(20, dtype="float32")
RANKS = 3


@pytest.fixture(scope="module")
def make():
    """A metric of one's own that keeps the largest, the smallest and the number of what it saw."""
    import keras
    from keras import ops

    class Range(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="range")
            self.largest = self.add_weight(name="largest", initializer=keras.initializers.Constant(-1e9))
            self.smallest = self.add_weight(name="smallest", initializer=keras.initializers.Constant(1e9))
            self.seen = self.add_weight(name="seen", initializer="zeros")

        def reset_state(self):
            self.largest.assign(-1e9)
            self.smallest.assign(1e9)
            self.seen.assign(0.0)

        def update_state(self, y, *_, **__):
            self.largest.assign(ops.maximum(self.largest, ops.max(y)))
            self.smallest.assign(ops.minimum(self.smallest, ops.min(y)))
            self.seen.assign_add(ops.cast(ops.shape(y)[0], "float32"))

        def result(self):
            return (self.largest - self.smallest) * 1000 + self.seen

    def make(**declared):
        metric = Range()
        for name, value in declared.items():
            object.__setattr__(metric, name, value)
        return metric

    return make


def evaluate(metric, batches):
    """Return what ranks find together, of whom the last may have nothing."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.data import array_of
    from sidecar.evaluation.backends.tensorflow.measured_metric import MeasuredMetric
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.metrics.metric import EvalSetInfo

    measured = MeasuredMetric(metric, tf.constant(batches[0]), tf.constant(batches[0]), None)
    ranks = [measured.states(EvalSetInfo(len(Y), Shard(rank, RANKS))) for rank in range(RANKS)]
    for number, batch in enumerate(batches):
        outputs = measured.step(tf.constant(batch), tf.constant(batch), None)
        measured.add(
            ranks[number % RANKS], tf.nest.map_structure(lambda each: [array_of(each)], outputs), [len(batch)], [None]
        )
    for state in ranks[0]:
        rows = np.sum([rank[state].used() for rank in ranks], axis=0) > 0
        total = np.sum([rank[state].pack(rows) for rank in ranks], axis=0)
        ranks[0][state].unpack(total, rows)
    (number,) = measured.compute(ranks[0]).values.values()
    return number.value


DECLARED = {"largest": "max", "smallest": "min"}


@pytest.mark.parametrize("sizes", [(20,), (7, 13), (1, 19), (5, 5, 5, 5)])
def test_declared_extremes(make, sizes):
    """The largest, the smallest and a sum in one metric, whichever rank saw which; some see nothing."""
    batches = np.split(Y, np.cumsum(sizes)[:-1])
    assert evaluate(make(sidecar_reduction=DECLARED), batches) == 19_020


def test_undeclared_extremes_are_found(make):
    """Without a word it would be added up: refused, naming the state and how to declare it."""
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match=r"'range'.*from zero"):
        evaluate(make(), [Y])
    with pytest.raises(EvaluationError, match=r"'range'.*\bmax\b.*state 'seen'"):
        evaluate(make(sidecar_reduction=DECLARED | {"seen": "max"}), [Y])


@pytest.mark.parametrize("declared", ["mean", {"largest": "mean"}, {"nothing": "max"}])
def test_a_declaration_that_says_nothing(make, declared):
    """Reductions that do not exist, or of variables that do not, are told with those that do."""
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match=r"\bsum, max, min\b.*\blargest.*\bseen\b"):
        evaluate(make(sidecar_reduction=declared), [Y])


def test_a_first_batch_of_one_example(make):
    """It cannot be halved, so it is doubled: the guard works all the same."""
    from sidecar.evaluation.failures import EvaluationError

    assert evaluate(make(sidecar_reduction=DECLARED), [Y[:1], Y[1:]]) == 19_020
    with pytest.raises(EvaluationError, match="seen"):
        evaluate(make(sidecar_reduction=DECLARED | {"seen": "max"}), [Y[:1], Y[1:]])


def test_a_loss_whose_names_say_another_order_is_refused():
    """Keras passes labels first, to a function from a script of PyTorch, too: the error would be relative to labels."""
    from sidecar.evaluation.backends.tensorflow.keras_loss import KerasLoss
    from sidecar.evaluation.failures import EvaluationError

    def relative(preds, target):
        return abs(preds - target) / target

    with pytest.raises(EvaluationError, match=r"lambda y_true, y_pred: relative\(y_pred, y_true\)"):
        KerasLoss(relative, None, weighted=False)
    KerasLoss(lambda y_true, y_pred: relative(y_pred, y_true), None, weighted=False)
