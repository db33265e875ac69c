"""Look at a checkpoint directory once, with the settings of the daemons."""

from commands.conftest import shown
from fakes import save

from sidecar.commands.from_settings import make_catalog
from sidecar.protocol.records import Settlement, folder_name
from sidecar.settings import Settings


def test_who_looks_once_calls_nothing_unfinished_that_is_whole(place):
    """A daemon waits whether somebody still writes what no state file names; here that would be said for ever."""
    save(place, 7)
    (place / "checkpoint").unlink()
    settings = Settings(checkpoint_dir=place)
    look = make_catalog(settings, once=True).scan()
    assert ([each.checkpoint.name for each in look.found], look.waiting) == (["ckpt-7"], ())
    assert make_catalog(settings).scan().found == ()


def test_what_only_the_daemons_look_for_is_named_with_the_remedy(observer, writers, clock):
    """An empty queue would say that all is done, where this command lacks the daemons' checkpoint_pattern."""
    for beat in (1, 2):
        writers.beat("node-0", beat, sees=("model-5.npz@0123456789ab",))
        clock.seconds += 1
        found = observer.collect()
    assert found.queue == ()
    text = " ".join(shown(found).split())
    assert "model-5.npz@0123456789ab: the daemons find it" in text
    assert "checkpoint_pattern, by --config FILE" in text


def test_what_the_daemons_find_and_the_journal_settled_since_is_not_missed(observer, writers, clock):
    """A heartbeat may be older than the journal."""
    settled = Settlement(name="ckpt-5", digest="e" * 64, step=5, verdict="vanished", reason="gone")
    writers.propose(settled)
    for beat in (1, 2):
        writers.beat("node-0", beat, sees=(folder_name(settled.key),))
        clock.seconds += 1
        found = observer.collect()
    assert found.unknown == {}
