"""Ranks that meet in a folder: waits, leftovers of other evaluations, damage, and what is left behind."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from evaluation.fake_framework import at_once

from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.backend import RankReport
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.shared_folder import SharedFolderCollective
from sidecar.evaluation.states import ExactSum
from sidecar.protocol.messages import Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member

SECONDS = {"restore": 1.0, "evaluate": 2.0, "save": 0.5, "reduce": 3.0}
CHECKPOINT = Checkpoint(name="model-1", digest="digest", step=1, format="matching_file")


def command(folder, rank, ranks, plan=1):
    return Evaluate(
        plan=plan,
        checkpoint=CHECKPOINT,
        path="/m",
        save_to=str(folder / f"worker-{rank}-of-{ranks}"),
        save_weights="none",
        progress_seconds=1.0,
    )


def join_of(rank, ranks=2, group="g"):
    """Return the command that lets a rank join a group."""
    members = tuple(Member(each, f"node-{each}", f"w.{each}", "") for each in range(ranks))
    return Join(group=group, members=members, rank=rank, task="t", framework="python", search_path="/", threads=1)


def ranks_in(folder, ranks=2, plan=1, group="g", **named):
    """The collectives of a group, each prepared for a plan."""
    found = []
    for rank in range(ranks):
        collective = SharedFolderCollective(join_of(rank, ranks, group), **named)
        collective.begin(command(folder, rank, ranks, plan))
        found.append(collective)
    return found


def together(calls):
    """Return what each of some calls returns or raises, all at the same time."""
    found = [None] * len(calls)

    def one(number):
        try:
            found[number] = calls[number]()
        except EvaluationError as error:
            found[number] = error

    at_once(one, len(calls), 30)
    return found


def saved(folder, rank, ranks, number, *, plan=1, group="g", variables="v"):
    """Save the state of one rank; its report."""
    states = {"test": {"sum": ExactSum((), "float64")}}
    states["test"]["sum"].add(np.float64(number))
    with ArtifactWriter(folder / f"worker-{rank}-of-{ranks}", in_parallel=ThreadPoolExecutor(1)) as writer:
        writer.begin(None)
        writer.finish(states, variables, {"group": group, "plan": plan, "seconds": SECONDS | {"evaluate": rank + 1.0}})
    return RankReport(states, variables, SECONDS)


class Clock:
    """Time that goes on while somebody waits."""

    def __init__(self):
        self.now, self.pauses = 0.0, 0

    def pause(self, seconds):
        """A pause is a long time."""
        self.now += seconds * 10_000
        self.pauses += 1


def test_sums_of_all_ranks_one_after_the_other(tmp_path):
    """In a folder that the first of them makes."""
    ranks = ranks_in(tmp_path / "evaluations" / "plan-1", 3)
    for vector in (np.array([1, 2, 3]), np.array([1 << 60, -5])):
        for total in together([lambda each=each, vector=vector: each.sum(vector) for each in ranks]):
            assert total.tolist() == (3 * vector).tolist()


def test_states_are_those_on_disk_and_nothing_else_is_left(tmp_path):
    """Sums are exact, and the slowest rank's times are reported."""
    ranks = ranks_in(tmp_path, 3)
    together([lambda each=each: each.sum(np.array([1])) for each in ranks])
    reports = [saved(tmp_path, rank, 3, number) for rank, number in enumerate((1e300, 0.1, -1e300))]
    found = together(
        [lambda each=each, rank=rank: each.reduce(join_of(rank, 3), reports[rank]) for rank, each in enumerate(ranks)]
    )
    assert [float(each.states["test"]["sum"].round()) for each in found] == [0.1] * 3
    assert found[0].slowest == {"restore": 1.0, "evaluate": 3.0, "save": 0.5, "reduce": 3.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"worker-{rank}-of-3" for rank in range(3)]


def test_leftovers_of_another_evaluation_are_waited_out(tmp_path):
    """As in the folder that `sidecar eval --save-dir` is given twice: neither hello nor states are taken from them."""
    old = ranks_in(tmp_path, group="before")
    together([lambda each=each: each.sum(np.array([100])) for each in old])
    for rank in range(2):
        saved(tmp_path, rank, 2, 100.0, group="before")
    first, second = ranks_in(tmp_path)
    late = threading.Timer(0.2, lambda: second.sum(np.array([1])))
    late.start()
    assert first.sum(np.array([1])).tolist() == [2]
    late.join()
    reports = [saved(tmp_path, 0, 2, 1.0)]
    late = threading.Timer(0.2, lambda: reports.append(saved(tmp_path, 1, 2, 2.0)))
    late.start()
    assert float(first.reduce(join_of(0), reports[0]).states["test"]["sum"].round()) == 3.0
    late.join()


def test_ranks_that_restored_other_values_find_out(tmp_path):
    first, _ = ranks_in(tmp_path)
    report = saved(tmp_path, 0, 2, 1.0, variables="these")
    saved(tmp_path, 1, 2, 1.0, variables="those")
    with pytest.raises(EvaluationError) as caught:
        first.reduce(join_of(0), report)
    assert (caught.value.kind, caught.value.sides) == ("mismatch", ((0,), (1,)))


def test_nobody_waits_for_ever(tmp_path):
    """The daemons end a wait much sooner; pauses grow, so that storage is not asked all the time."""
    clock = Clock()
    first, _ = ranks_in(tmp_path, now=lambda: clock.now, pause=clock.pause)
    with pytest.raises(EvaluationError) as caught:
        first.sum(np.array([1]))
    assert (caught.value.kind, caught.value.lost) == ("member_lost", 1)
    assert "rank 1 on node-1" in str(caught.value)
    assert clock.pauses < 100


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"[" * 100_000, b'{"group": "g", "plan": 1, "sum": 0, "values": ["a"]}', b"\xff"]
)
def test_a_damaged_hello_is_told(tmp_path, content):
    """It was renamed when it was whole, so it is storage that broke it."""
    first, _ = ranks_in(tmp_path)
    (tmp_path / ".worker-1-of-2.hello-0.part").write_bytes(content)
    with pytest.raises(EvaluationError) as caught:
        first.sum(np.array([1]))
    assert caught.value.kind == "storage"


def test_a_hello_of_another_length_is_refused(tmp_path):
    first, _ = ranks_in(tmp_path)
    content = {"group": "g", "plan": 1, "sum": 0, "values": [1, 2]}
    (tmp_path / ".worker-1-of-2.hello-0.part").write_text(json.dumps(content))
    with pytest.raises(EvaluationError) as caught:
        first.sum(np.array([1]))
    assert caught.value.kind == "mismatch"


def test_a_link_in_the_place_of_a_hello_is_not_followed(tmp_path):
    """Other users may write to the folder."""
    first, _ = ranks_in(tmp_path)
    (tmp_path / "elsewhere").write_text(json.dumps({"group": "g", "plan": 1, "sum": 0, "values": [1]}))
    (tmp_path / ".worker-1-of-2.hello-0.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvaluationError) as caught:
        first.sum(np.array([1]))
    assert caught.value.kind == "storage"


@pytest.mark.parametrize("planted", ["link", "folder as a link", "fifo"])
def test_saved_states_are_regular_files(tmp_path, planted):
    """Other users may write to the folder: nothing is followed out of it, and nobody waits for a writer."""
    first, _ = ranks_in(tmp_path / "plan-1")
    report = saved(tmp_path / "plan-1", 0, 2, 1.0)
    saved(tmp_path / "elsewhere", 1, 2, 2.0)
    worker, elsewhere = tmp_path / "plan-1" / "worker-1-of-2", tmp_path / "elsewhere" / "worker-1-of-2"
    if planted == "folder as a link":
        worker.symlink_to(elsewhere)
    else:
        worker.mkdir()
        if planted == "fifo":
            os.mkfifo(worker / "states.json")
        else:
            (worker / "states.json").symlink_to(elsewhere / "states.json")
    with pytest.raises(EvaluationError) as caught:
        first.reduce(join_of(0), report)
    assert caught.value.kind == "storage"


def test_storage_that_cannot_be_written_is_to_blame(tmp_path):
    """A file where the plan's folder should be."""
    (tmp_path / "plan-1").write_text("in the way")
    first, _ = ranks_in(tmp_path / "plan-1")
    with pytest.raises(EvaluationError) as caught:
        first.sum(np.array([1]))
    assert caught.value.kind == "storage"
