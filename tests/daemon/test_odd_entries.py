"""Whole daemons beside entries that somebody planted, moved or broke in the state directory: they go on evaluating."""

import os

import pytest
from fakes import FakeClock, Node, outcomes, pass_time, restarted, save

from sidecar.coordination import snapshot_store

ODD = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "torn": lambda path: path.write_bytes(b'{"run":'),
}


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path, FakeClock())
    save(node.checkpoint_dir, 1)
    pass_time(15, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-1")]
    return node


def evaluates_on(node, step=2):
    save(node.checkpoint_dir, step, keep=range(1, step))
    pass_time(15, node)
    assert node.exited is None
    return outcomes(node.history)[-1] == ("succeeded", f"ckpt-{step}")


def told(node, event="entry_failed"):
    return [fields.get("message") for fields in node.log.of(event)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("odd", list(ODD))
def test_one_odd_file_among_the_members_stops_no_node(node, odd):
    """Neither one that runs nor one that starts; the status names the file."""
    ODD[odd](node.run_dir / "members" / "n0.json")
    assert evaluates_on(node)
    fresh = restarted(node, "i2")
    pass_time(30, fresh)
    assert evaluates_on(fresh, 3)
    for each in (node, fresh):
        assert each.status.unready is None
        (sentence,) = each.status.unreadable.sentences
        assert "members/n0.json" in sentence
        assert each.status.unreadable.count == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("odd", list(ODD))
def test_a_snapshot_that_cannot_be_read_or_written_is_none(node, odd):
    """The journal has it all; that it cannot be written is said once."""
    node.daemon.requests.snapshot_plans = 1
    (node.run_dir / snapshot_store.PATH).unlink(missing_ok=True)
    ODD[odd](node.run_dir / snapshot_store.PATH)
    fresh = restarted(node, "i2")
    pass_time(15, fresh)
    assert outcomes(fresh.history) == [("succeeded", "ckpt-1")]
    for step in (2, 3):
        assert evaluates_on(node, step)
    assert len(told(node)) == (odd == "a folder")  # anything else is replaced


def test_evaluations_that_were_moved_behind_a_link_stop_nobody(node, tmp_path):
    """Links are not followed: that is said, and evaluations go on, without views of their results."""
    (node.run_dir / "evaluations").rename(tmp_path / "other disk")
    (node.run_dir / "evaluations").symlink_to(tmp_path / "other disk")
    before = sorted((tmp_path / "other disk").rglob("*"))
    for step in (2, 3, 4):
        assert evaluates_on(node, step)
    pass_time(10, node)
    assert all("link" in sentence for sentence in told(node))
    assert 0 < len(told(node)) == len(set(told(node)))
    assert sorted((tmp_path / "other disk").rglob("*")) == before
    pass_time(400, node, step=5.0)
    assert [each["tries"] for each in node.log.of("saves_left")] == [5, 5]
    pass_time(400, node, step=5.0)
    assert len(node.log.of("saves_left")) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("odd", list(ODD))
def test_a_view_of_a_result_that_cannot_be_written_stops_nobody(node, odd):
    """It is told, and does not end the daemon."""
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 2, keep=[1])
    pass_time(5, node)
    place = node.run_dir / "evaluations" / node.daemon.state.history.open.checkpoint.folder
    place.mkdir(exist_ok=True)
    ODD[odd](place / "result.json")
    node.silent = set()
    pass_time(10, node)
    assert outcomes(node.history)[-1] == ("succeeded", "ckpt-2")
    assert evaluates_on(node, 3)
    assert all("result.json" in sentence for sentence in told(node))


def test_a_view_is_never_written_through_a_link(node, tmp_path):
    """Somebody put a link to a folder of theirs where the results of a checkpoint go."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "result.json").write_text("mine")
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 2, keep=[1])
    pass_time(5, node)
    (node.run_dir / "evaluations" / node.daemon.state.history.open.checkpoint.folder).symlink_to(tmp_path / "outside")
    node.silent = set()
    pass_time(10, node)
    assert outcomes(node.history)[-1] == ("succeeded", "ckpt-2")
    assert (tmp_path / "outside" / "result.json").read_text() == "mine"
    assert any("no link inside the state directory is followed" in sentence for sentence in told(node))


def test_what_killed_writers_left_goes_after_a_day(node):
    """In every folder that daemons write to, and in those of single checkpoints; nothing else does."""
    folder = next((node.run_dir / "evaluations").iterdir())
    (node.run_dir / "sinks").mkdir()
    written = ("members", "plans", "outcomes", "evaluations", "sinks")
    places = [node.run_dir, folder, *(node.run_dir / name for name in written)]
    day = 86400.0
    for place in places:
        for name, age in ((".tmp-old", 2 * day), (".tmp-new", day / 2), ("note.txt", 2 * day)):
            (place / name).touch()
            at = (place / name).stat().st_mtime - age
            os.utime(place / name, (at, at))
    fresh = restarted(node, "i2")
    pass_time(40, fresh)
    assert [
        sorted(path.name for path in place.glob("*t*") if path.name.startswith((".tmp", "note"))) for place in places
    ] == [[".tmp-new", "note.txt"]] * len(places)
