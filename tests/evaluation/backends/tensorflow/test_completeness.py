"""A checkpoint that holds more of the model than the task builds is refused, in every format and by both Kerases."""

import importlib
from functools import partial

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

FILES = ("m.keras", "m.weights.h5", "m.h5", "s.weights.json")
FORMATS = (*FILES, "object", "saved_model", "export")
LIBRARIES = ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)]


def data(count=43):
    x = np.random.default_rng(7).normal(size=(count, 6)).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def branched(of, *, branch=True, compiled=True, dropout=0.0):
    """A model with a switch: a branch that is added at its end."""
    inputs = of.Input((6,))
    hidden = of.layers.Dense(6, activation="relu", name="hidden")(inputs)
    if dropout:
        hidden = of.layers.Dropout(dropout)(hidden)
    outputs = of.layers.Dense(3, name="out")(hidden)
    if branch:
        outputs = of.layers.Add()([outputs, of.layers.Dense(3, name="branch")(outputs)])
    model = of.Model(inputs, outputs)
    if compiled:
        loss = of.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(of.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def subclassed(of, *, branch=True):
    """The same as a class whose constructor has a switch."""

    class Net(of.Model):
        def __init__(self):
            super().__init__()
            self.hidden = of.layers.Dense(6, name="hidden")
            self.branch = of.layers.Dense(6, name="branch") if branch else None
            self.final = of.layers.Dense(3, name="final")

        def call(self, x):
            hidden = self.hidden(x)
            return self.final(hidden if self.branch is None else hidden + self.branch(x))

    net = Net()
    net(data()[0][:1])
    return net


def save(of, model, folder, form):
    """Save in one of the formats; return the path, or None if this Keras cannot."""
    import tensorflow as tf

    path = str(folder / form)
    if form == "object":
        optimizer = getattr(model, "optimizer", None)
        others = {} if optimizer is None else {"optimizer": optimizer}
        return tf.train.Checkpoint(model=model, **others).save(path)
    if form == "saved_model":
        tf.saved_model.save(model, path)
    elif form == "export":
        model.export(path, **({"verbose": False} if of.__name__ == "keras" else {}))
    elif form == "s.weights.json":
        if of.__name__ != "keras":
            return None
        model.save_weights(path, max_shard_size=3e-7)
    elif "weights" in form:
        model.save_weights(path)
    else:
        model.save(path)
    return path


def restored(model, path, **exceptions):
    """Restore, and return the notes."""
    from sidecar.evaluation.backends.tensorflow.completeness import Exceptions
    from sidecar.evaluation.backends.tensorflow.restore import restore

    return restore(model, path, None, Exceptions(**exceptions)).notes


def refusal(model, path, **exceptions):
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError) as caught:
        restored(model, path, **exceptions)
    assert caught.value.kind == "mismatch"
    return str(caught.value)


def line_of(message):
    """The patterns of the line that a message ends with."""
    return eval(message.rpartition("Task(ignore=")[2].partition(")")[0])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_branch_that_the_task_does_not_build(library, tmp_path):
    """Each format names the values, and the line that it proposes lets them be; with a note."""
    of = importlib.import_module(library)
    saved = branched(of)
    saved.fit(*data(), verbose=0)
    values = [np.array(weight) for weight in saved.weights]
    for form in FORMATS:
        path = save(of, saved, tmp_path, form)
        if path is None:
            continue
        message = refusal(branched(of, branch=False), path)
        if form == "m.h5":  # Keras compares the numbers of layers
            assert "2 layers, found 3 saved layers" in message
            continue
        assert "holds 2 values of the saved model that this model has no variable for" in message, form
        assert "(3, 3)" in message, form
        plain = branched(of, branch=False)
        note, *described = restored(plain, path, ignore=line_of(message))
        # The configuration that a .keras file stores shows the branch, too.
        assert len(described) == (form == "m.keras"), (form, described)
        assert all("described otherwise than that of build_model" in each for each in described)
        assert "2 values of the checkpoint left out, as Task(ignore=…) says" in note, form
        assert restored(branched(of), path) == (), form
        same = [
            weight for weight in plain.weights if "hidden" in weight.name or "hidden" in getattr(weight, "path", "")
        ]
        assert np.array_equal(np.array(same[0]), values[0]), form


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_switch_of_a_class(library, tmp_path):
    """A subclassed model does not describe its layers, and its values are found all the same."""
    of = importlib.import_module(library)
    saved = subclassed(of)
    saved.compile("adam", "mse")
    for form in ("m.weights.h5", "object"):
        path = save(of, saved, tmp_path, form)
        message = refusal(subclassed(of, branch=False), path)
        if library == "keras" or form == "object":
            assert "holds 2 values of the saved model" in message
            assert "branch" in message
        assert restored(subclassed(of), path) == ()


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_belongs_to_training_is_no_part_of_the_model(library, tmp_path):
    """Optimizers, metrics, counters and random generators of training cause no refusal of a plain model."""
    import tensorflow as tf

    of = importlib.import_module(library)
    saved = branched(of, dropout=0.3)
    saved.fit(*data(), verbose=0)
    for form in FORMATS:
        if (path := save(of, saved, tmp_path, form)) is not None:
            assert restored(branched(of, compiled=False, dropout=0.3), path) == (), form
    other = tf.Variable([1.0, 2.0])
    average = branched(of, branch=False)
    for name, root in {
        "beside": tf.train.Checkpoint(model=saved, optimizer=saved.optimizer, other=other, ema=average),
        "net": tf.train.Checkpoint(net=saved, step=tf.Variable(3), other=other),
        "root": tf.train.Checkpoint(saved, adam=of.optimizers.SGD(), step=tf.Variable(3, dtype=tf.int64)),
    }.items():
        assert restored(branched(of, compiled=False, dropout=0.3), root.save(str(tmp_path / name))) == (), name
    holder = tf.Module()
    holder.model, holder.head = saved, other
    assert restored(branched(of, dropout=0.3), tf.train.Checkpoint(holder).save(str(tmp_path / "module"))) == ()


def test_the_place_that_fits_exactly_is_chosen(tmp_path):
    """Take the place without more variables where two hold all of them, and a note says so; `model` stays first."""
    import keras
    import tensorflow as tf

    large, small = branched(keras), branched(keras, branch=False)
    path = tf.train.Checkpoint(student=small, teacher=large).save(str(tmp_path / "two"))
    model = branched(keras, branch=False)
    (note,) = restored(model, path)
    assert "the model is 'student' of the checkpoint; 'teacher' would hold more values" in note
    assert np.array_equal(model.get_weights()[0], small.get_weights()[0])
    path = tf.train.Checkpoint(model=large, base=small).save(str(tmp_path / "named"))
    assert "write Task(checkpoint=lambda model: tf.train.Checkpoint(base=model))" in refusal(model, path)


def adapted():
    """A model after fine-tuning with LoRA."""
    import keras

    model = branched(keras, branch=False)
    model.fit(*data(), verbose=0)
    model.get_layer("hidden").enable_lora(2)
    model.get_layer("hidden").lora_kernel_b.assign(np.random.default_rng(3).normal(size=(2, 6)))
    model.compile(keras.optimizers.Adam(0.05), model.loss, metrics=["accuracy"])
    return model


def test_adapters_of_lora(tmp_path, evaluate):
    """Adapters that the task does not enable are named, with the call; enabled, the numbers are those of training."""
    import keras

    saved = adapted()
    x, y = data()
    truth = saved.evaluate(x, y, verbose=0, return_dict=True)

    def build(*, lora):
        model = branched(keras, branch=False)
        if lora:
            model.get_layer("hidden").enable_lora(2)
        return model

    for form in FORMATS:
        path = save(keras, saved, tmp_path, form)
        if form in ("object", "saved_model", "export"):  # other formats hold the sum
            message = refusal(build(lora=False), path)
            assert "lora_kernel_a" in message, form
            assert "lora_kernel_b" in message, form
            assert "call model.get_layer('hidden').enable_lora(2) in build_model" in message, form
            assert line_of(message) == ["*lora_*"], form
        elif form == "m.h5":  # Keras compares the numbers of values
            assert "Received 4 saved weight(s)" in refusal(build(lora=False), path)
            continue
        else:
            assert restored(build(lora=False), path) == (), form
        has_adapters = form in ("object", "saved_model", "export")
        task = Task(partial(build, lora=has_adapters), {"test": data}, batch_size=10)
        found = [evaluate(task, path, ranks=ranks) for ranks in ((1, 2, 3) if form == "object" else (1,))]
        assert len({str(each.hexes) for each in found}) == 1, form
        assert found[0]["accuracy"].value == pytest.approx(truth["accuracy"]), form
        assert found[0]["loss"].value == pytest.approx(truth["loss"], rel=1e-5), form


def test_ignored_values_are_named_in_the_result(tmp_path, evaluate):
    """Also a pattern that describes nothing, for any number of ranks."""
    import keras

    path = save(keras, adapted(), tmp_path, "object")
    task = Task(
        lambda: branched(keras, branch=False), {"test": data}, batch_size=10, ignore=["hidden/lora_", "another."]
    )
    found = [evaluate(task, path, ranks=ranks) for ranks in (1, 2, 3)]
    assert found[0].hexes == found[1].hexes == found[2].hexes
    (left_out,) = [note for note in found[0].notes if "left out" in note]
    assert "2 values of the checkpoint left out, as Task(ignore=…) says: hidden/lora_kernel_a" in left_out
    (unused,) = [note for note in found[0].notes if "'another.'" in note]
    assert "Task(ignore=…): nothing in this checkpoint needs 'another.'" in unused


@pytest.mark.parametrize("library", LIBRARIES)
def test_variables_of_build_model(library, tmp_path, evaluate):
    """Variables that the checkpoint lacks keep what `build_model` gave them, after a checkpoint that held them, too."""
    of = importlib.import_module(library)

    def build():
        model = branched(of)
        model.get_layer("branch").set_weights([np.full((3, 3), 0.25), np.ones(3)])
        return model

    part = branched(of, branch=False)
    paths = [save(of, part, tmp_path / "part", "object"), save(of, branched(of), tmp_path / "whole", "object")]
    task = Task(build, {"test": data}, batch_size=10, from_build_model=["branch/"])
    first, whole, again = evaluate(task, paths[0], paths[1], paths[0])
    assert first.hexes == again.hexes != whole.hexes
    assert "2 variables not in the checkpoint with the value of build_model" in " ".join(first.notes)
    assert "Task(from_build_model=…): nothing in this checkpoint needs 'branch/'" in " ".join(whole.notes)
    assert evaluate(task, paths[0], ranks=2).hexes == first.hexes


def test_variables_of_build_model_are_compared_between_ranks(tmp_path):
    """The digest that ranks compare covers them: random values of each process would be another model on each."""
    import keras

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    path = save(keras, branched(keras, branch=False), tmp_path, "object")
    task = Task(lambda: branched(keras), {"test": data}, batch_size=10, from_build_model=["branch/"])
    digests = set()
    for rank in (0, 1):
        evaluator = KerasEvaluator.build(task, Shard(rank, 2), threads=1, cache_bytes=1 << 20)
        evaluator.restore(path)()
        digests.add(evaluator.digest()())
    assert len(digests) == 2


@pytest.mark.parametrize("library", LIBRARIES)
def test_named_layers_in_another_order(library, tmp_path):
    """Layers of equal shapes that the task makes in another order would get the values of one another."""
    from sidecar.evaluation.failures import EvaluationError

    of = importlib.import_module(library)

    def build(*, first, second):
        left, right = of.Input((4,), name="left"), of.Input((4,), name="right")
        made = {name: of.layers.Dense(3, name=name) for name in (first, second)}
        outputs = {name: made[name](left if name == "of_left" else right) for name in (first, second)}
        return of.Model([left, right], [outputs["of_left"], outputs["of_right"]])

    crossed, saved = [], build(first="of_left", second="of_right")
    task = build(first="of_right", second="of_left")
    for form in ("object", "m.keras", "m.weights.h5", "m.h5") if library == "keras" else ("object", "m.h5"):
        try:
            restored(task, save(of, saved, tmp_path, form))
        except EvaluationError as error:
            crossed.append(str(error))
        else:
            left, right = task.get_layer("of_left").get_weights(), saved.get_layer("of_left").get_weights()
            assert np.array_equal(left[0], right[0]), form
    assert all("layers in another order" in each for each in crossed)
