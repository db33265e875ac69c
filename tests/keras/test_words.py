"""Messages of an evaluation name only what the user of `SidecarEvaluator` can write."""

from typing import Final

import pytest

TASK_WORDS: Final = ("Task(", "build_model", "sidecar.toml", "worker_env")
QUANTISED: Final = """It has values. The saved model is quantised: call model.quantize("int8") in build_model. \
If they do not matter, write Task(ignore=["hidden/", "out/"])"""
DESCRIBED: Final = """x. Let build_model return the model that was saved; if it is right as it is, write \
Task(restore=lambda model, path: model.load_weights(path))"""
BY_NAMES: Final = """Give the layers the names that they have in training, or write Task(restore=lambda model, path: \
[v.assign(tf.train.load_variable(path, {'a': 'one of b or c'}[v.path.removeprefix(model.name + '/')])) \
for v in model.weights]), with one name in the place of each 'one of …'"""


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("of_task", "of_evaluator"),
    [
        (QUANTISED, 'call model.quantize("int8") before the model is given to SidecarEvaluator.'),
        ("call layer.enable_lora(2) in build_model for the layers 'a', 'b', as training did.", "enable_lora(2) before"),
        (DESCRIBED, "Give SidecarEvaluator the model that was saved"),
        ("Let build_model return the model that was saved, or name its place with Task(checkpoint=…).", "was saved."),
        (
            "'a', 'b' all match the model; choose one: Task(checkpoint=lambda model: tf.train.Checkpoint(a=model))",
            "save it as tf.train.Checkpoint(model=…)",
        ),
        (BY_NAMES, "Give the layers the names that they have in training"),
        ("no vocabulary for 'a', and build_model gives none: call layer.adapt(…) in build_model, or", "for 'a': call"),
        ("dataset.batch(4, drop_remainder=True) and Task(batch_size=None)", "dataset.batch(4, drop_remainder=True)"),
        ("Task(batch_size=None) means that the data is batched: if it is not, give a batch_size", "batch the data"),
        ("leave out enable_lora in build_model.", "leave out enable_lora before"),
    ],
)
def test_words_of_a_task(of_task, of_evaluator):
    """Lines for the author of a task are left out, or say what can be done with the model."""
    from sidecar.keras.model_evaluation import _reword

    told = _reword(of_task)
    assert of_evaluator in told
    assert not any(word in told for word in TASK_WORDS)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("saved_by", "model_of"), [(2, 3), (3, 2)])
def test_advice_on_the_version_of_keras(saved_by, model_of):
    """The variable is that of the program, not of a worker."""
    from sidecar.evaluation.backends.tensorflow.saved_by import advice
    from sidecar.keras.model_evaluation import _reword

    told = _reword(advice(saved_by, model_of=model_of))
    assert not any(word in told for word in TASK_WORDS)
    assert "keras" in told
