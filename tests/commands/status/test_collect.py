"""Observe a run in storage twice, and tell who beats."""

import json
from functools import partial

import pytest
from commands.conftest import shown
from fakes import FaultyStorage, pass_time, save
from fakes import Node as FakeNode

from sidecar.commands.hints import no_run
from sidecar.commands.load import check_place
from sidecar.commands.status.collect import RunObserver, RunReader, observe_for
from sidecar.commands.status.render import as_json
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.protocol.states import WorkerPhase
from sidecar.settings import Settings


def strict(found):
    return json.loads(json.dumps(as_json("mnist", found), allow_nan=False))


def test_a_run_of_another_name_is_told(catalog, clock, place):
    """Most likely `--run` was mistyped."""
    settings = Settings(checkpoint_dir=place, run="statf")
    open_run(PosixStorage(settings.state_dir / "state"), 0.0)
    observer = RunObserver(
        PosixStorage(settings.run_dir), catalog, clock, lease_seconds=10.0, no_run=partial(no_run, settings)
    )
    told = " ".join(shown(observer.collect()).split())
    assert told.startswith("run statf: no daemon has started yet; runs in ")
    assert told.endswith(": state")


@pytest.mark.parametrize(("starts_new", "pending"), [(False, 2), (True, 0)])
def test_checkpoints_wait_before_a_run_begins(place, catalog, clock, starts_new, pending):
    """As the first daemon will find them; with `start = "new"` it skips them."""
    for step in (1, 2):
        save(place, step, keep=(1, 2))
    clock.seconds += 100
    observer = RunObserver(PosixStorage(place / "none"), catalog, clock, lease_seconds=10.0, starts_new=starts_new)
    assert strict(observer.collect())["pending"] == pending


def test_a_place_that_does_not_exist_is_a_mistake(tmp_path):
    """Neither checkpoints nor a run: the sentence names the path. Either of them is enough."""
    settings = Settings(checkpoint_dir=tmp_path / "ckpst", state_dir=tmp_path / "state")
    with pytest.raises(SettingsError, match=rf"'{settings.checkpoint_dir}'.*{settings.run_dir}"):
        check_place(settings, PosixStorage(settings.run_dir))
    settings.run_dir.mkdir(parents=True)
    check_place(settings, PosixStorage(settings.run_dir))


def test_who_beats_is_found_out_by_looking_twice(observer, writers, clock):
    """A change proves life, on the looker's own clock; who does not change is silent for as long as was looked."""
    writers.beat("node-0", 1)
    writers.beat("node-1", 1)
    writers.beat("node-2", 9, state="left")
    beats = iter(range(2, 100))

    def pause(seconds):
        clock.seconds += seconds
        if clock.seconds > 1001.0:
            writers.beat("node-0", next(beats))

    observe_for(observer, 4.5, pause)
    found = observer.collect()
    assert clock.seconds == pytest.approx(1004.5, abs=0.2)
    members = {each["node"]: each for each in strict(found)["nodes"]}
    assert [members[f"node-{index}"]["fresh"] for index in range(3)] == [True, None, False]
    assert members["node-1"]["silent_seconds"] == pytest.approx(4.5, abs=0.2)
    assert members["node-0"]["silent_seconds"] < 0.2
    assert found.proposer == strict(found)["proposer"] == "node-0"
    told = shown(found)
    assert "node-0 proposes plans and publishes" in told
    assert "over 4.5 s ago" in told or "over 4.6 s ago" in told


def test_the_look_ends_once_all_are_known(observer, writers, clock):
    """A person does not wait longer than needed."""
    writers.beat("node-0", 1)
    writers.beat("node-1", 3, state="left")

    def pause(seconds):
        clock.seconds += seconds
        writers.beat("node-0", 2)

    observe_for(observer, 4.5, pause)
    assert clock.seconds < 1000.5
    assert observer.collect().proposer == "node-0"


def test_who_did_not_observe_concludes_nothing(observer, writers, clock):
    """Without a second look, and in the first moment of --watch: no daemon is said to be down."""
    writers.beat("node-0", 1)
    observer.collect()
    clock.seconds += 0.01
    told = shown(observer.collect())
    assert "seem to be down" not in told
    assert "not observed" in told
    clock.seconds += 4.0
    assert "no heartbeat changed for 4.0 s: the daemons seem to be down" in shown(observer.collect())


def test_silence_of_a_lease_means_gone(observer, writers, clock):
    """As with --watch: what changed once may end."""
    writers.beat("node-0", 1)
    observer.collect()
    writers.beat("node-0", 2)
    clock.seconds += 2
    assert observer.collect().members[0].fresh(10.0)
    clock.seconds += 10
    found = observer.collect()
    assert found.members[0].fresh(10.0) is False
    assert found.proposer is None
    assert "no heartbeat changed for 10.0 s" in shown(found)


def test_a_beat_of_the_past_is_no_sign_of_life(observer, writers, clock):
    """Storage may show an old version of the file once more."""
    writers.beat("node-0", 5)
    observer.collect()
    writers.beat("node-0", 4)
    clock.seconds += 2
    assert not observer.collect().members[0].changed


def test_each_record_is_read_once(catalog, clock, writers, checkpoint, storage):
    """With --watch a long journal costs its new end only."""
    watched = FaultyStorage(storage)
    observer = RunObserver(watched, catalog, clock, lease_seconds=10.0)
    for step in range(5):
        writers.propose(checkpoint=checkpoint(step))
        writers.close()
    assert observer.collect().verdicts["evaluated"] == 5
    watched.asked.clear()
    writers.propose(checkpoint=checkpoint(9))
    assert observer.collect().history.open.checkpoint.name == "ckpt-9"
    plan, outcome = "plans/000000000006.json", "outcomes/000000000006.json"
    asked = [path for path in watched.asked["read"] if path.startswith(("plans", "outcomes"))]
    assert asked == [plan, outcome, plan]  # again once it is durable


def test_another_run_in_the_same_place_is_looked_at_anew(observer, writers, storage, checkpoint):
    """Somebody deleted the state directory while --watch looked on."""
    import shutil

    writers.propose(checkpoint=checkpoint(1))
    assert observer.collect().history.open is not None
    shutil.rmtree(storage.root)
    assert observer.collect().run_id is None


def test_real_daemons_tell_what_their_workers_do(tmp_path, clock):
    """The phase of a worker is sent with the next heartbeat and does not cause a heartbeat of its own."""
    node = FakeNode(tmp_path, clock)
    node.silent = {"Join"}
    save(node.checkpoint_dir, 1)
    pass_time(20, node)
    assert node.history.open is not None
    observer = RunObserver(
        node.storage.storage, node.storage_thread.reconciler.checkpoints.catalog, clock, lease_seconds=10.0
    )
    (member,) = observer.collect().members
    (doing,) = member.heartbeat.doing
    assert (doing.phase, doing.worker) == ("join", node.history.open.members[0].worker)
    assert observer.collect().phase == "join"
    beats = member.heartbeat.beat
    node.daemon.supervisor.workers.find(doing.worker).progress.enter(WorkerPhase.RESTORE, clock.now())
    node.settle()
    assert observer.collect().members[0].heartbeat.beat == beats
    pass_time(2, node)
    assert observer.collect().phase == "restore"


@pytest.fixture
def reader(storage, run):
    return RunReader.begin(storage, run)


def test_the_journal_is_read_on(reader, writers, checkpoint):
    """Each call takes in what was written since the last one."""
    for plan, name in enumerate(("ckpt-1", "ckpt-2"), start=1):
        writers.propose(checkpoint=checkpoint(plan))
        reader.read_journal()
        assert (reader.history.through, reader.history.open.checkpoint.name) == (plan, name)
        writers.close()


def test_the_task_is_that_of_a_node_that_is_alive(reader, writers):
    """A node that was there counts only if no node with a task is known to be alive."""
    assert reader.task(10.0) is None
    writers.beat("node-0", 1, task="old")
    writers.beat("node-1", 1, task="new")
    reader.read_heartbeats(0.0)
    assert reader.task(10.0) == "old"
    writers.beat("node-1", 2, task="new")
    reader.read_heartbeats(3.0)
    assert reader.task(10.0) == "new"


@pytest.mark.parametrize(
    ("wall", "trusted", "alive", "unknown"),
    [
        (1004.0, 10.0, True, []),
        (1002.0, 2.5, True, []),
        (1004.0, 2.5, None, ["node-1"]),
        (1000.0 - 1.5, 10.0, True, []),
        (1000.0 - 9.0, 10.0, None, ["node-1"]),
        (1030.0, 10.0, None, ["node-1"]),
        (1030.0, 2.5, None, ["node-1"]),
        (2000.0, 10.0, False, []),
        (2000.0, 2.5, False, []),
        (1004.0, None, None, ["node-1"]),
    ],
    ids=[
        *("just_written", "within_a_beat", "longer_than_a_beat", "coarse_times", "from_the_future", "silent"),
        *("silent_here", "long_ago", "long_ago_here", "times_do_not_count"),
    ],
)
def test_the_time_of_a_file_tells_at_once_who_is_alive(reader, writers, wall, trusted, alive, unknown):
    """If times count, nobody waits for a beat, unless the clocks differ or could differ by that much."""
    writers.beat("node-1", 1)
    reader.read_heartbeats(5.0, wall, trusted, 10.0, lambda _: 1000.0)
    (node,) = reader.nodes
    assert (node.fresh(10.0), reader.nodes.unknown()) == (alive, unknown)


def test_a_file_that_is_no_heartbeat_is_named(reader, writers, storage):
    """The other heartbeats are read all the same."""
    writers.beat("node-0", 1)
    storage.replace("members/node-1.json", b"{")
    reader.read_heartbeats(0.0)
    assert [observed.heartbeat.node for observed in reader.nodes] == ["node-0"]
    assert list(reader.unread) == ["node-1"]
