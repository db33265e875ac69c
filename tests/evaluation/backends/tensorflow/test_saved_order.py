"""The order of values in HDF5 files of older Keras, which follows what was frozen."""

import importlib

import numpy as np
import pytest

from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]


def nested(of, kind, *, frozen):
    """A model in a model, as for transfer learning, all of it frozen or, with `middle`, a layer alone."""
    layers = of.layers
    inner = {
        "alike": [layers.BatchNormalization(), layers.BatchNormalization()],
        "others": [layers.BatchNormalization(), layers.Dense(4), layers.BatchNormalization()],
        "middle": [layers.Dense(4), layers.Dense(4), layers.Dense(4)],
    }[kind]
    base = of.Sequential([of.Input((4,)), *inner], name="base")
    (inner[1] if kind == "middle" else base).trainable = not frozen
    return of.Sequential([of.Input((4,)), base, of.layers.Dense(3)])


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("kind", ["alike", "others", "middle"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.drawn(2)
def test_layers_that_training_froze_must_be_frozen(tmp_path, library, kind, whole):
    """Values of equal shapes would change their places, and others would not fit."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    of = importlib.import_module(library)
    whole = whole or library == "keras"  # it writes weights alone in another format
    saved = nested(of, kind, frozen=True)
    saved.set_weights([np.full_like(weight, number + 1) for number, weight in enumerate(saved.get_weights())])
    path = str(tmp_path / "m-1.h5")
    (saved.save if whole else saved.save_weights)(path)
    with pytest.raises(EvaluationError, match="in another order") as caught:
        restore(nested(of, kind, frozen=False), path, None)
    assert "model.get_layer('base').trainable = False in build_model" in str(caught.value)
    of.layers.Dense(1)  # so that the layers have other numbers
    model = nested(of, kind, frozen=True)
    restore(model, path, None)
    assert all(map(np.array_equal, model.get_weights(), saved.get_weights()))
