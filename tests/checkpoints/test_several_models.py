"""Files of several models in one folder are told apart by their names, with the setting that chooses one."""

import pytest

from sidecar.checkpoints.several_models import remedy_for_several_models

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
