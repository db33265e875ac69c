"""Files of several models in one folder are told apart by their names, with the setting that chooses one."""

from types import SimpleNamespace

import pytest

from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.daemon.record_builder import RecordBuilder
from sidecar.protocol.records import Checkpoint, Plan

GAN = ["netD_epoch_3.pth", "netG_epoch_3.pth", "netD_epoch_4.pth", "netG_epoch_4.pth"]


@pytest.mark.parametrize(
    ("name", "others", "words"),
    [
        ("netD_epoch_3.pth", GAN, "holds netG_epoch_3.pth. If"),
        ("netD_epoch_3.pth", GAN, 'set checkpoint_glob = "netG_epoch_*.pth"'),
        ("critic.pt", ["actor.pt", "critic.pt"], 'checkpoint_glob = "actor.pt"'),
        ("run-1/d-3.pt", ["run-1/g-3.pt", "run-2/h-3.pt", "run-1/d-3.pt"], 'checkpoint_glob = "run-*/g-*.pt"'),
        ("step-3.pt", ["step-3.pt", "step-4.pt", "best-4.pt", "other-3.ckpt"], ""),
        ("step-3.pt", [], ""),
    ],
)
def test_others_with_the_same_numbers_are_named(name, others, words):
    found = remedy_for_several_models(name, others)
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(("kind", "lasting"), [("mismatch", "checkpoint"), ("mismatch", None), ("task_error", "task")])
def test_a_daemon_says_it_of_what_does_not_match_the_model(kind, lasting):
    """Not of workers that differ."""
    made = [Checkpoint(name=name, digest=name, step=3, format="torch_zip") for name in GAN]
    state = SimpleNamespace(
        complete={each.key: SimpleNamespace(checkpoint=each) for each in made},
        identity=SimpleNamespace(node="n1"),
    )
    builder = RecordBuilder(state=state, clock=SimpleNamespace(wall=lambda: 0.0), new_nonce=lambda: "n")
    plan = Plan(
        plan=1,
        run="r",
        nonce="p",
        checkpoint=made[0],
        attempt=1,
        members=(),
        settles=(),
        task="t",
        proposer="n1",
        proposed_at="2026-01-01T00:00:00Z",
    )
    fail = SimpleNamespace(kind=kind, message="it lacks 'main.0.weight'", node=None, rank=None, odd=(), lasting=lasting)
    message = builder.failure(plan, fail).message
    assert message.startswith("it lacks 'main.0.weight'")
    assert ("netG_epoch_*.pth" in message) == (lasting == "checkpoint")
