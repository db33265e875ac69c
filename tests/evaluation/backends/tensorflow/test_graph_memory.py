"""A traced step keeps nothing if it only reads variables, or assigns them before any other use."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


def steps(tf):
    """Functions of a tensor, by what they do; and whether they can remember a call."""
    weights, total, count = (tf.Variable(np.zeros(3, "float32")) for _ in range(3))
    keys = tf.constant(["a", "b"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 2.0])), 0.0)

    inserted = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)

    def reset_and_add(x):
        total.assign(tf.zeros(3))
        total.assign_add(x)
        return total + 0.0

    def count_in_a_branch(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: count.assign_add(x) + 0.0, lambda: x)

    def insert(x):
        before = inserted.lookup(keys[0])
        inserted.insert(keys[0], before + 1.0)
        return x + before

    def read_and_assign(x):
        before = total + 0.0
        total.assign(x)
        return before

    def by_python(x):
        return tf.numpy_function(lambda array: array, [x], tf.float32, stateful=False)

    def by_python_in_a_branch(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: by_python(x), lambda: x)

    return {
        "reads": (lambda x: x * weights, False),
        "reads rows": (lambda x: x * tf.gather(weights, [0, 2, 1]), False),
        "looks up": (lambda x: x[0] + table.lookup(keys), False),
        "branches": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x), False),
        "resets and adds": (reset_and_add, False),
        "counts": (lambda x: count.assign_add(x) + 0.0, True),
        "counts in a branch": (count_in_a_branch, True),
        "counts in a row": (lambda x: count.scatter_add(tf.IndexedSlices(x[:1], [0])) + x, True),
        "counts in a table": (insert, True),
        "reads and assigns": (read_and_assign, True),
        "draws": (lambda x: x + tf.random.uniform([3]), True),
        "calls Python": (by_python, True),
        "calls Python in a branch": (by_python_in_a_branch, True),
    }


@pytest.mark.usefixtures("digits")
def test_what_can_remember_a_call():
    """Where that is unknown, as in a branch that changes a variable, the step counts as one that can."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.graph_memory import assigns_nothing, keeps_nothing

    made = steps(tf)
    found, assigning = {}, set()
    for name, (step, _) in made.items():
        trace = tf.function(step).get_concrete_function(tf.TensorSpec([3], tf.float32))
        found[name] = not keeps_nothing(trace.graph)
        if not assigns_nothing(trace.graph):
            assigning.add(name)
    assert found == {name: remembers for name, (_, remembers) in made.items()}
    assert assigning == {"resets and adds", "counts", "reads and assigns"}, "calls of these must not run at once"
