"""The evaluator, with real models and checkpoints: numbers, callbacks, data, formats, and mistakes."""

import math

import pytest

from sidecar.errors import SettingsError, TaskError
from sidecar.keras.checkpoint_watch import FOLDER

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


def reference(small, model, data=None):
    """Return what Keras' own evaluation says."""
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
    """A mistake in the model or in the data is a task error at the start, before any checkpoint exists."""
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
    """The error about a wrong argument gives its name and its value."""
    name, value = next(iter(options.items()))
    with pytest.raises(SettingsError, match=repr(value)) as caught:
        new_evaluator(**options).start()
    assert name.replace("folder", "checkpoint_dir") in str(caught.value)
