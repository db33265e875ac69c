"""Add a remedy to the message of a failure where the checkpoint itself is not the model's."""

from types import SimpleNamespace

import pytest
from records import make_plan

from sidecar.daemon.record_builder import RecordBuilder
from sidecar.protocol.records import Checkpoint

GAN = ["netD_epoch_3.pth", "netG_epoch_3.pth", "netD_epoch_4.pth", "netG_epoch_4.pth"]


@pytest.mark.parametrize(("kind", "lasting"), [("mismatch", "checkpoint"), ("mismatch", None), ("task_error", "task")])
def test_a_daemon_says_it_of_what_does_not_match_the_model(kind, lasting):
    """Not of workers that differ."""
    made = [Checkpoint(name=name, digest=name, step=3, format="torch_zip") for name in GAN]
    state = SimpleNamespace(
        complete={each.key: SimpleNamespace(checkpoint=each) for each in made},
        identity=SimpleNamespace(node="n1"),
    )
    builder = RecordBuilder(state=state, clock=SimpleNamespace(wall=lambda: 0.0), new_nonce=lambda: "n")
    plan = make_plan(1, made[0])
    fail = SimpleNamespace(kind=kind, message="it lacks 'main.0.weight'", node=None, rank=None, odd=(), lasting=lasting)
    message = builder.failure(plan, fail).message
    assert message.startswith("it lacks 'main.0.weight'")
    assert ("netG_epoch_*.pth" in message) == (lasting == "checkpoint")
