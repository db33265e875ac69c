"""Train with Keras until the early stop."""

import sys

import pytest
from commands.demo.trainers import train

pytestmark = [pytest.mark.seconds, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.tensorflow
def test_the_trainer_of_tensorflow(told):
    """After the first checkpoint, which it saves before it asks."""
    module = ("-m", "sidecar.commands.demo.train", "--checkpoints", str(told), "--save-every", "20", "--steps", "100")
    said = train(sys.executable, *module, folder=told.parent)
    assert "step 20: the sidecar saw no improvement" in said
    assert sorted(path.name for path in told.glob("*.index")) == ["ckpt-20.index"]
