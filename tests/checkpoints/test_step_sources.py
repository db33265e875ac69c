"""Say in one sentence how the steps of checkpoints were found."""

from dataclasses import replace

from sidecar.checkpoints.step_sources import StepSources
from sidecar.protocol.records import Checkpoint


def test_how_steps_were_found_in_one_sentence():
    """With an example of each that is about names; what is new is told again, and doubt is told as such."""
    one = Checkpoint(name="a.keras", digest="d", step=8, format="keras", step_source="optimizer")
    found = StepSources()
    assert found.add([one, one])
    assert not found.are_doubtful
    assert found.summary() == "step = the optimizer's iterations, for all 2"
    assert not found.add([one])
    assert found.add([replace(one, name="epoch_3.keras", step=3, step_source="name")])
    assert found.summary() == "step = the optimizer's iterations for 3; the name for 1 (epoch_3.keras is step 3), of 4"
    assert found.are_doubtful
    assert found.add([replace(one, name="best.keras", step=None, step_source="order")])
    assert "a number in order of writing for 1 (best.keras), of 5" in found.summary()
