"""Show what writers really do, system call by system call: nothing on the way counts as complete."""

import pytest
from checkpoints.kinds import CALLBACKS, KINDS, NEVER_WHOLE
from checkpoints.written_states import replay, trace, whole

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

EARLY = {
    ("shards", 1): 6,  # after each map and before the next shard, and the first shard before there is a map
    ("shards", 2): 6,
    ("saved_model", 2): 8,  # new variables beside the marker of the save before
    ("saved_model_by_tf_keras", 2): 8,
    ("saved_model_with_assets", 2): 11,  # new assets, too
    ("export", 2): 8,
    ("model_checkpoint_by_tf_keras", 2): 8,
}
"""States that only time tells from finished ones: the writer does not stay in them."""

RECORDED = KINDS + CALLBACKS


@pytest.fixture(scope="session")
def traced(real_writer, tmp_path_factory):
    """Two saves of each kind."""
    return trace(real_writer, RECORDED, tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", RECORDED)
def test_nothing_on_the_way_is_complete(traced, root, new_catalog, clock, kind, number, tally):
    """After each call, and half of each write: what is found is the finished checkpoint, or the one before it."""
    assert len(set(whole(traced.after(number, kind)))) == (kind not in NEVER_WHOLE)
    states, early = replay(traced, number, kind, root, new_catalog(), clock)
    assert states > 5
    assert early <= EARLY.get((kind, number), 0)
    tally.add("states that writers pass through", states, states)
    print(f"{kind}, save {number}: {states} states, {early} of them whole by structure alone, and too early")
