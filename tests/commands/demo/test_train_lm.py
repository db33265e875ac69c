"""Train the language model of the demo alone."""

import json

import pytest
from commands.demo.test_train_torch import TORCHRUN
from commands.demo.trainers import train

pytestmark = [pytest.mark.seconds, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.torch
def test_each_checkpoint_can_be_evaluated_alone(tmp_path):
    """It has the model's configuration and the tokenizer; older ones are deleted, and nothing is left unfinished."""
    module = ("-m", "sidecar.commands.demo.train_lm", "--checkpoints", str(tmp_path / "ckpts"))
    said = train(*TORCHRUN, *module, "--save-every", "2", "--steps", "8", folder=tmp_path)
    assert "step 8 of 8" in said
    assert sorted(path.name for path in (tmp_path / "ckpts").iterdir()) == [f"checkpoint-{step}" for step in (4, 6, 8)]
    last = tmp_path / "ckpts/checkpoint-8"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in last.iterdir()}
    assert json.loads((last / "config.json").read_text())["vocab_size"] == 1024
