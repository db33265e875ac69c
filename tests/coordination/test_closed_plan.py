"""Read one evaluation by its number, wherever its records are."""

from sidecar.coordination.closed_plan import has_plan, read_success
from sidecar.coordination.journal import Journal, plan_path
from sidecar.coordination.storage import PosixStorage


def records(storage, run):
    return list(Journal(storage, run).read_to_end())


def test_one_evaluation_is_read_from_its_segment(storage, write, compact):
    """As is whether there is such a plan."""
    write(8)
    before = [read_success(storage, number) for number in range(10)]
    compact(8)
    assert [read_success(storage, number) for number in range(10)] == before
    assert [number for number in range(12) if has_plan(storage, number)] == list(range(1, 9))


def test_a_plan_that_a_suspended_daemon_creates_late_decides_nothing(storage, run, write, compact, new_plan):
    """Its name was free, because the plan of that number is in a segment: the daemon reads that one."""
    write(4)
    late = Journal(storage, run)
    late.read_new()
    late.reaches_end()
    create, waiting = storage.create, PosixStorage(storage.root)

    def create_late(path, data):
        if path == plan_path(5):
            write(12)
            compact(12)
        create(path, data)

    waiting.create = create_late
    late.storage = waiting
    assert not late.propose(new_plan(5, "late"))
    assert storage.read(plan_path(5)) is not None
    assert [record.nonce for record in late.read_new()][:2] == ["plan-5", "end-5"]
    assert [record.nonce for record in records(storage, run)][7:9] == ["plan-5", "end-5"]
    assert read_success(storage, 5).plan.nonce == "plan-5"
    compact(12)
    assert storage.read(plan_path(5)) is None
