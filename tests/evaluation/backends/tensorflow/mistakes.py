# ruff: noqa: ARG001, ARG005 - the signatures are those of Keras
"""Tasks of Keras with one mistake each, and how they are refused."""


def examples(y):
    """How many there are, also within a trace."""
    import tensorflow as tf

    return tf.cast(tf.shape(y)[0], "float32")


def metric(of=None, **methods):
    """A function that returns one metric made of these methods."""
    import keras

    of = of or keras.metrics.Metric

    def init(self, name="mine", **kwargs):
        of.__init__(self, name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer=methods.get("initializer", "zeros"))

    usual = {
        "__init__": init,
        "update_state": lambda self, y, y_pred, sample_weight=None: self.total.assign_add(examples(y)),
        "result": lambda self: self.total + 0.0,
    }
    made = type("Mine", (of,), usual | methods)
    return lambda: [made()]


def raise_in_metric(self, y, y_pred, sample_weight=None):
    raise ZeroDivisionError("no examples of class 7")


def raise_in_data(number):
    if number == 40:
        raise OSError("cannot read image-40.png")
    return number
