"""Choose the weights of a model among the files of a folder."""

import pytest

from sidecar.protocol.weight_names import main_weights


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["model.safetensors", "model.safetensors.index.json"], "model.safetensors"),
        (["model.safetensors", "model_1.safetensors"], "model.safetensors"),
        (["weights.safetensors", "optimizer.pt"], "weights.safetensors"),
        (["a.safetensors", "b.safetensors"], None),
        (["model-00001-of-00002.safetensors", "model.safetensors.index.json"], "model.safetensors.index.json"),
        (["model-00001-of-00002.safetensors"], None),
        (["pytorch_model.bin", "training_args.bin"], "pytorch_model.bin"),
        (["training_args.bin", "optimizer.bin"], None),
    ],
)
def test_which_weights_are_the_models(names, weights):
    """Usual names first, in the order in which Hugging Face's libraries look for them."""
    assert main_weights(names) == weights
