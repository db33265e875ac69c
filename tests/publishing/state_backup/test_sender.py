"""A backup holds the whole state, whatever fails meanwhile, and only one state directory sends to it."""

import shutil

import pytest
from bucket_server import BUCKET
from publishing.sinks.conftest import publishing, until
from state_places import RULES
from statuses import make_status

from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import read_history
from sidecar.publishing.state_backup.ownership import OWN_PATH, open_backup

pytestmark = pytest.mark.seconds

URL = f"s3://{BUCKET}/backups"


def stored(server_folder):
    """Return the objects of the backup, which localbucket keeps as files."""
    folder = server_folder / "data" / BUCKET / "backups" / "mnist"
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    contents = {path: found[path].read_bytes() for path in found if not path.startswith("copies/")}
    return {path: data for path, data in contents.items() if data}  # localbucket deletes none


@pytest.fixture
def objects(tmp_path):
    """`objects()` are those of the backup."""
    return lambda: stored(tmp_path / "server-localbucket")


def test_all_of_the_state_is_sent(use_bucket, new_place, objects):
    """Journal, saves, views of sinks and the signal to stop; a second daemon sends only what is new."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    place.evaluate(1)
    for path in ("sinks/mlflow.json", "early_stop.json", "comparisons/1-2-x.json", "evaluations/.part", "pins/a/b"):
        place.storage.replace(path, path.encode())
    assert place.send(2).pending == 0
    expected = place.files()
    del expected["evaluations/.part"], expected["pins/a/b"]
    assert objects() == expected
    place.storage.remove("early_stop.json")
    shutil.rmtree(next((place.run_dir / "evaluations").glob("ckpt-1@*")))
    place.send(3)
    expected = place.files()
    del expected["evaluations/.part"], expected["pins/a/b"]
    assert objects() == expected


def test_a_server_that_is_killed_and_one_that_stops(use_bucket, new_place, objects):
    """Nothing waits in a queue: what was missed is found in the state directory, and the log tells of it once."""
    server = use_bucket("localbucket")
    place = new_place("a", URL)
    place.send(1)
    server.kill()
    backup = place.daemon()
    backup.update(publishing(), place.evaluate(*range(2, 12)))
    until(lambda: backup.status.failing)
    assert backup.status.pending == 11
    assert backup.status.oldest_pending is not None
    server.start()
    until(lambda: backup.has_delivered)
    backup.update(publishing(), place.evaluate(12))
    server.stop()
    backup.update(publishing(), place.evaluate(13))
    server.resume()
    until(lambda: backup.has_delivered)
    place.end()
    assert objects() == place.files()
    assert place.log.names() == ["sink_failed", "sink_recovered"]
    assert backup.status.pending == 0


def test_a_journal_with_segments_is_sent_in_few_objects(use_bucket, new_place, objects):
    """Plans that moved into a segment while the store was away are not looked for one by one."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    history = place.evaluate(*range(1, 9), saves=0)
    compaction = Compaction(place.storage, history.entries[0].plan.run, kept_plans=2, most_plans=3)
    for _ in compaction.carry_out(8):
        pass
    assert place.send(9).failing is None
    names = objects()
    assert [name for name in names if name.startswith("segments/")] != []
    assert "plans/000000000001.json" not in names
    assert sorted(name for name in names if name.startswith("plans/")) == sorted(
        name for name in place.files() if name.startswith("plans/") and name != "plans/000000000001.json"
    )


def test_a_store_without_conditions_is_refused(use_bucket, new_place):
    """Two machines could write one backup there."""
    use_bucket("s3rver")
    place = new_place("a", URL)
    status = place.send(1)
    assert "If-None-Match" in status.failing
    assert status.pending == 1


@pytest.mark.parametrize(("server", "scheme"), [("moto_server", "s3"), ("azurite-blob", "az")])
def test_other_stores(server, scheme, use_bucket, new_place):
    """Objects are there under names with spaces and signs."""
    use_bucket(server)
    url = f"{scheme}://{BUCKET}/backups"
    place = new_place("a", url)
    place.storage.replace("evaluations/ckpt%2F1 ü#?@x/a+b~.json", b"{}")
    assert place.send(1).failing is None
    store = open_backup(url, "mnist", RULES)
    found = {each.key: each for each in store.listing() if not each.key.startswith("copies/")}
    assert found.keys() == place.files().keys()
    name = "evaluations/ckpt%2F1 ü#?@x/a+b~.json"
    assert store.content(name, 10) == b"{}"


def test_a_copy_of_the_state_directory_sends_nothing(use_bucket, new_place, objects):
    """A machine that was cloned writes other records under the same numbers: the second one to do so stops."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    place.send(1)
    shutil.copytree(place.folder, place.folder.with_name("b"))
    twin = new_place("b", URL)
    place.send(2)
    before = objects()
    assert "plans/000000000002.json" in twin.send(22).failing
    assert {path: data for path, data in objects().items() if "22" not in path} == before


def test_another_run_does_not_take_a_backup(use_bucket, new_place):
    """A new run in a new state directory says whose backup it is; another folder in the bucket works."""
    use_bucket("localbucket")
    new_place("a", URL).send(1)
    other = new_place("b", URL)
    assert "another state directory" in other.send(1).failing
    assert new_place("b", f"{URL}/b").send().failing is None
    assert other.storage.read(OWN_PATH) is not None


def test_the_next_publisher_goes_on(use_bucket, new_place, objects):
    """Both nodes share the state directory, and so the backup is theirs."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    first, second = place.daemon(), place.daemon()
    first.update(publishing(), place.evaluate(1))
    until(lambda: first.has_delivered)
    history = place.evaluate(2)
    first.update(make_status(state="ready", publisher=False), read_history(place.storage))
    second.update(publishing(), history)
    until(lambda: second.has_delivered and first.has_delivered)
    assert second.status.failing is None
    place.end()
    assert objects() == place.files()
