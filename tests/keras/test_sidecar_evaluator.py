"""The evaluator, with real models and checkpoints: numbers, callbacks, data, formats, and mistakes."""

import math

import pytest

from sidecar.errors import EvaluationFailedError, SettingsError, TaskError
from sidecar.keras.private_folder import FOLDER

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


def reference(small, model, data=None):
    """What Keras' own evaluation says."""
    return model.evaluate(small.dataset() if data is None else data, verbose=0, return_dict=True)


def test_every_format_is_found_and_restored(small, new_evaluator, tmp_path):
    """A file of Keras, weights, HDF5, and two of TensorFlow: numbers and iterations are those of the model."""
    models = {name: small.trained(10 * (index + 1)) for index, name in enumerate("abcde")}
    models["a"].save(tmp_path / "m-1.keras")
    models["b"].save_weights(tmp_path / "m-2.weights.h5")
    models["c"].save(tmp_path / "m-3.h5")
    small.tf.train.Checkpoint(model=models["d"], optimizer=models["d"].optimizer).write(str(tmp_path / "m-4"))
    checkpoint = small.tf.train.Checkpoint(model=models["e"], optimizer=models["e"].optimizer)
    small.tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1, checkpoint_name="m").save(checkpoint_number=5)
    evaluator = new_evaluator(every=True)
    assert evaluator.start() is None
    assert [result.step for result in evaluator.results] == [10, 20, 30, 40, 50]
    for result, model in zip(evaluator.results, models.values(), strict=True):
        assert result.examples == len(small.x)
        assert dict(result.metrics) == pytest.approx(reference(small, model), rel=2e-6), result
    assert evaluator.model.optimizer.iterations == 50
    assert not (tmp_path / FOLDER).exists()


class _Told:
    """Notes the calls of a callback."""

    def __init__(self, small):
        class Callback(small.keras.callbacks.Callback):
            calls = self.calls = []  # noqa: RUF012 - one callback of each class

            def on_test_begin(self, logs=None):
                self.calls.append(("on_test_begin", dict(self.params), self.model is not None))

            def on_test_batch_begin(self, batch, logs=None):
                self.calls.append(("on_test_batch_begin", batch))

            def on_test_batch_end(self, batch, logs=None):
                self.calls.append(("on_test_batch_end", batch, dict(logs)))

            def on_test_end(self, logs=None):
                self.calls.append(("on_test_end", dict(logs)))

        self.callback = Callback()


def test_callbacks_are_called_as_by_keras(small, new_evaluator, tmp_path, capsys):
    """With the same batches and parameters, and the metrics up to each batch; the line at the end is that of Keras."""
    saved = small.trained(3)
    saved.save(tmp_path / "m-1.keras")
    ours, theirs = _Told(small), _Told(small)
    new_evaluator(callbacks=[ours.callback]).start()
    line = capsys.readouterr().out
    saved.evaluate(small.dataset(), verbose=2, callbacks=[theirs.callback])
    expected = capsys.readouterr().out
    assert [call[:2] for call in ours.calls[:-1]] == [call[:2] for call in theirs.calls[:-1]]
    for our, their in zip(ours.calls, theirs.calls, strict=True):
        if our[0] in ("on_test_batch_end", "on_test_end"):
            assert our[-1] == pytest.approx({name: float(value) for name, value in their[-1].items()}, rel=1e-5)
    assert line.split(" - ")[0] == expected.split(" - ")[0]
    assert sorted(part.split(":")[0] for part in line.split(" - ")[3:]) == ["accuracy", "loss"]


def test_tensorboard_gets_tags_steps_and_folder(small, new_evaluator, tmp_path):
    """Those of Keras 2."""
    small.trained(32).save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(callbacks=[small.keras.callbacks.TensorBoard(log_dir=tmp_path / "logs")])
    evaluator.start()
    (file,) = (tmp_path / "logs" / "validation").iterdir()
    found = {}
    for record in small.tf.data.TFRecordDataset(str(file)):
        event = small.tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            found[value.tag] = event.step, float(small.tf.make_ndarray(value.tensor))
    (result,) = evaluator.results
    assert found == {
        f"evaluation_{name}_vs_iterations": (32, pytest.approx(value, rel=1e-6))
        for name, value in result.metrics.items()
    }


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so at the end of each generator
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", ["generator", "sequence", "arrays", "repeated", "shuffled", "taken"])
def test_all_data_that_keras_takes(kind, exact, small, new_evaluator, tmp_path):
    """The second evaluation sees the same examples as the first one, also of a generator."""
    np, tf = small.np, small.tf

    class Sequence(small.keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return small.x[index * 10 : index * 10 + 10], small.y[index * 10 : index * 10 + 10]

    batches = [(small.x[:50], small.y[:50]), (small.x[50:], small.y[50:])]
    examples = tf.data.Dataset.from_tensor_slices((small.x, small.y))
    data, options, count = {
        "generator": (iter(batches), {}, 101),
        "sequence": (Sequence(), {"steps": 3}, 30),
        "arrays": ((small.x, small.y), {"batch_size": 50}, 101),
        "repeated": (small.dataset().repeat(), {"steps": 3}, 48),
        "shuffled": (examples.shuffle(101).batch(20), {}, 101),
        "taken": (small.dataset(), {"steps": 2}, 32),
    }[kind]
    model = small.trained(1)
    model.save(tmp_path / "m-1.keras")
    model.save(tmp_path / "m-2.keras")
    evaluator = new_evaluator(data=data, every=True, exact=exact, **options)
    evaluator.start()
    logits = np.asarray(model(small.x))
    correct = int((logits.argmax(axis=1) == small.y)[:count].sum())
    accuracy = correct / count if exact else float(np.float32(correct / count))
    assert [each.examples for each in evaluator.results] == [count if exact else None] * 2
    assert [each.metrics["accuracy"] for each in evaluator.results] == [accuracy] * 2


@pytest.mark.parametrize("exact", [True, False])
def test_a_metric_that_cannot_be_added_up(exact, small, new_evaluator, tmp_path):
    """It is updated in turn, so that both ways give the same number."""

    class Largest(small.keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(small.keras.ops.maximum(self.value, small.keras.ops.max(y_pred)))

        def result(self):
            return self.value + 0.0

    saved = small.trained(7)
    saved.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(small.model(metrics=[Largest()]), exact=exact)
    evaluator.start()
    (result,) = evaluator.results
    assert (result.examples is None) == (not exact)
    assert result.metrics["largest"] == pytest.approx(float(small.np.asarray(saved(small.x)).max()))
    assert evaluator.model.optimizer.iterations == 7


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("exact", [True, False])
def test_a_generator_of_lists(exact, small, new_evaluator, tmp_path):
    """Keras 2 took `yield [a, b], y` for two inputs; an absent weight is no weight."""
    layers = small.keras.layers
    inputs = [small.keras.Input((4,)), small.keras.Input((4,))]
    outputs = layers.Dense(2, activation="softmax")(layers.Concatenate()(inputs))
    model = small.keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(tmp_path / "m-1.keras")
    batches = (([small.x[at : at + 50]] * 2, small.y[at : at + 50], None) for at in (0, 50))
    evaluator = new_evaluator(model, batches, exact=exact)
    evaluator.start()
    (result,) = evaluator.results
    expected = model.evaluate([small.x[:100]] * 2, small.y[:100], verbose=0, return_dict=True)
    assert result.metrics == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_a_metric_of_several_numbers(exact, small, new_evaluator, tmp_path):
    """Each number has its index in its name, as with exact sums."""
    metrics = [small.keras.metrics.F1Score(average=None, name="f1")]
    one_hot = small.np.eye(2, dtype="float32")[small.y]
    model = small.keras.Sequential([small.keras.Input((4,)), small.keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=metrics)
    model.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(model, (small.x, one_hot), exact=exact)
    evaluator.start()
    expected = model.evaluate(small.x, one_hot, verbose=0, return_dict=True)["f1"]
    (result,) = evaluator.results
    assert {name: number for name, number in result.metrics.items() if name != "loss"} == {
        f"f1_{index}": pytest.approx(float(number), rel=1e-6) for index, number in enumerate(expected)
    }


@pytest.mark.parametrize("steps", [7, 8])
def test_more_steps_than_batches_are_reported(steps, small, new_evaluator, tmp_path, caplog):
    """The data has 7 batches, all of which are evaluated. A count of NumPy is a whole number, too."""
    small.trained(1).save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(steps=small.np.int64(steps), max_evaluations=small.np.int64(1))
    evaluator.start()
    assert [result.examples for result in evaluator.results] == [101]
    assert ("steps=8" in caplog.text) == (steps == 8)


def test_keras_2_under_a_strategy(small, new_evaluator, tmp_path):
    """Its metrics cannot be read batch by batch, so the exact evaluation is refused; `model.evaluate` works."""
    import tf_keras

    small.trained(9, of=tf_keras).save_weights(str(tmp_path / "ckpt-9"))
    with small.tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = small.model(of=tf_keras, is_built=True)
    with pytest.raises(TaskError, match=r"MirroredStrategy.*exact=False"):
        new_evaluator(model).start()
    evaluator = new_evaluator(model, exact=False)
    evaluator.start()
    assert [result.step for result in evaluator.results] == [9]


@pytest.mark.parametrize("exact", [True, False])
def test_callbacks_of_another_keras(exact, small, new_evaluator, tmp_path):
    """They are refused before a checkpoint is there. The export of the best model works with both."""
    import tf_keras

    from sidecar.keras import SidecarEvaluatorModelExport

    model = small.model(of=tf_keras)
    for callback, told in ((small.keras.callbacks.TensorBoard(tmp_path / "logs"), "tf_keras"), (3, "holds 3")):
        with pytest.raises(TaskError, match=told):
            new_evaluator(model, exact=exact, callbacks=[callback]).start()
    export = SidecarEvaluatorModelExport(tmp_path / "best" / "m", tmp_path / "ckpt-{epoch}", save_weights_only=True)
    new_evaluator(model, exact=exact, callbacks=[export, tf_keras.callbacks.Callback()]).start()


def test_numbers_may_be_nan(small, new_evaluator, tmp_path):
    """A model that diverged is a result, too."""
    model = small.trained(1)
    model.set_weights([small.np.full_like(weight, math.nan) for weight in model.get_weights()])
    model.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator()
    evaluator.start()
    assert math.isnan(evaluator.results[0].metrics["loss"])


def test_only_the_latest_checkpoint_is_evaluated(small, new_evaluator, tmp_path):
    """Unless `every` is given."""
    for number in (1, 2):
        small.trained(number).save_weights(tmp_path / f"m-{number}.weights.h5")
    evaluator = new_evaluator(max_evaluations=3)
    evaluator.start()
    assert [result.checkpoint for result in evaluator.results] == ["m-2.weights.h5"]


def test_the_same_name_is_evaluated_again(small, new_evaluator, tmp_path):
    """Training that saves under one name, without a number: `max_evaluations` counts evaluations."""

    class SaveAgain(small.keras.callbacks.Callback):
        times = 0

        def on_test_end(self, logs=None):
            self.times += 1
            small.trained(self.times).save_weights(tmp_path / "last.weights.h5")

    small.trained(9).save_weights(tmp_path / "last.weights.h5")
    evaluator = new_evaluator(callbacks=[SaveAgain()], max_evaluations=3, stop_idle_seconds=20)
    evaluator.start()
    assert [(result.checkpoint, result.step) for result in evaluator.results] == [
        ("last.weights.h5", 9),
        ("last.weights.h5", 1),
        ("last.weights.h5", 2),
    ]


def test_a_wrong_model_is_reported(small, new_evaluator, tmp_path):
    """With the variable that does not fit, and without words for authors of tasks."""
    small.trained(1, width=9).save_weights(tmp_path / "m-1.weights.h5")
    evaluator = new_evaluator()
    with pytest.raises(EvaluationFailedError, match=r"m-1.weights.h5.*9") as caught:
        evaluator.start()
    assert "build_model" not in str(caught.value)
    assert FOLDER not in str(caught.value)
    assert not (tmp_path / FOLDER).exists()


def test_a_truncated_file_is_never_evaluated(small, new_evaluator, tmp_path):
    """The one before it is."""
    for number in (1, 2):
        small.trained(number).save(tmp_path / f"m-{number}.keras")
    whole = (tmp_path / "m-2.keras").read_bytes()
    (tmp_path / "m-2.keras").write_bytes(whole[: len(whole) // 2])
    evaluator = new_evaluator()
    evaluator.start()
    assert [result.checkpoint for result in evaluator.results] == ["m-1.keras"]


def test_a_file_that_vanishes_during_the_load_is_skipped(small, new_evaluator, tmp_path, monkeypatch):
    """It is large, so that it is not copied, and it is read where it lies."""
    from sidecar.keras import checkpoint_watch
    from sidecar.keras.model_evaluation import ExactEvaluation

    for number in (1, 2):
        small.trained(number).save(tmp_path / f"m-{number}.keras")
    restore = ExactEvaluation.restore

    def delete_first(self, found, path):
        if found.checkpoint.name == "m-2.keras":
            (tmp_path / "m-2.keras").unlink()
        restore(self, found, path)

    def refused(*_, **__):
        raise checkpoint_watch.MustCopyError("large")

    monkeypatch.setattr(ExactEvaluation, "restore", delete_first)
    monkeypatch.setattr(checkpoint_watch, "pin", refused)
    evaluator = new_evaluator()
    evaluator.start()
    assert [result.checkpoint for result in evaluator.results] == ["m-1.keras"]


def test_names_may_hold_any_character(small, new_evaluator, tmp_path, caplog):
    """They reach neither a terminal nor a path as they are."""
    caplog.set_level("INFO", logger="tensorflow")
    name = "m\n\x1b[31m<script>é'\"$(x)-1.weights.h5"
    small.trained(4).save_weights(tmp_path / "m.weights.h5")
    (tmp_path / "m.weights.h5").rename(tmp_path / name)
    evaluator = new_evaluator(max_evaluations=1, stop_idle_seconds=20)
    evaluator.start()
    assert [(result.checkpoint, result.step) for result in evaluator.results] == [(name, 4)]
    assert all(message.isprintable() for message in caplog.messages)


def test_ctrl_c_ends_it(small, new_evaluator, tmp_path):
    """Without a traceback, and without leaving pins behind."""

    class Interrupt(small.keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            assert (tmp_path / FOLDER).exists()
            raise KeyboardInterrupt

    small.trained(1).save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(callbacks=[Interrupt()], stop_idle_seconds=None)
    evaluator.start()
    assert evaluator.results == []
    assert not (tmp_path / FOLDER).exists()


def test_iterations_come_from_the_name_if_there_is_no_optimizer(small, new_evaluator, tmp_path, caplog):
    """And a warning says so."""
    small.tf.train.Checkpoint(model=small.model(is_built=True)).write(str(tmp_path / "ckpt-8"))
    evaluator = new_evaluator()
    evaluator.start()
    assert evaluator.model.optimizer.iterations == 8
    assert "ckpt-8" in caplog.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda small: {"model": small.model(is_compiled=False)}, "not compiled"),
        (lambda small: {"data": small.x}, "without labels"),
        (lambda _: {"data": 3}, "found int"),
        (lambda _: {"data": iter([])}, "without a batch"),
        (lambda small: {"data": small.dataset().repeat()}, "steps="),
        (lambda small: {"data": small.dataset().unbatch()}, "single examples"),
        (lambda small: {"data": small.dataset().take(0)}, "empty"),
        (lambda small: {"data": small.tf.data.Dataset.from_tensors(small.x)}, "first batch"),
    ],
)
def test_mistakes_are_reported_before_a_checkpoint_is_there(change, told, small, new_evaluator):
    """In one sentence."""
    with pytest.raises(TaskError, match=told):
        new_evaluator(**change(small)).start()


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"max_evaluations": -1},
        {"max_evaluations": 1.5},
        {"max_retries": True},
        {"batch_size": 0},
        {"interval_seconds": 0},
        {"timeout_seconds": math.nan},
        {"stop_idle_seconds": -1},
        {"folder": "gs://bucket/ckpts"},
        {"folder": None},
    ],
)
def test_wrong_arguments_are_named(options, new_evaluator):
    """With their values."""
    name, value = next(iter(options.items()))
    with pytest.raises(SettingsError, match=repr(value)) as caught:
        new_evaluator(**options).start()
    assert name.replace("folder", "checkpoint_dir") in str(caught.value)


def test_a_generator_without_end_is_reported(small):
    """Before it fills the memory."""
    from sidecar.keras.eval_data import repeatable

    def endless():
        while True:
            yield small.x, small.y

    with pytest.raises(TaskError, match="more than 10000 bytes"):
        repeatable(endless(), steps=None, batch_size=1, most_bytes=10_000)()
    assert len(list(repeatable(endless(), steps=3, batch_size=1, most_bytes=10_000)())) == 3
