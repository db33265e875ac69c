"""A run is continued on another machine from its backup: the whole state, or nothing."""

import shutil

import pytest
from bucket_server import BUCKET
from publishing.sinks.conftest import publishing, until
from state_places import RULES
from typer.testing import CliRunner

from sidecar.commands.check.command import backup
from sidecar.commands.cli import app
from sidecar.commands.restore_state import backup_of, require_state, restore
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import read_history
from sidecar.errors import RecordError, StateUnavailableError, StorageError, StorageLostError
from sidecar.publishing.state_backup.ownership import BackupReplacedError
from sidecar.settings import load
from sidecar.system.object_store import ObjectStore

pytestmark = pytest.mark.seconds

URL = f"s3://{BUCKET}/backups"
AT = "2026-01-31T12:00:00.000Z"


@pytest.fixture
def settings_of(tmp_path):
    """`settings_of(place)` are those of a daemon on a machine."""
    (tmp_path / "ckpts").mkdir()

    def make(place):
        flags = {"checkpoint_dir": tmp_path / "ckpts", "state_dir": place.folder, "run": "mnist"}
        return load(flags | {"state_backup": place.url, "bucket_timeout_seconds": 5.0, "config": None})

    return make


@pytest.fixture
def restored(settings_of):
    """`restored(place)` restores the state directory of a machine, and returns the sentence."""

    def do(place, node="worker-9"):
        settings = settings_of(place)
        return restore(settings, backup_of(settings), node, AT)

    return do


@pytest.fixture
def objects(tmp_path):
    """Return the folder in which localbucket keeps the backup."""
    return tmp_path / "server-localbucket" / "data" / BUCKET / "backups" / "mnist"


def test_the_run_goes_on_and_the_old_machine_sends_nothing_more(use_bucket, new_place, restored):
    """Files and history are equal, the next evaluation is sent, and the machine that comes back says what happened."""
    use_bucket("localbucket")
    old, new = new_place("a", URL), new_place("b", URL)
    old.storage.replace("sinks/mlflow.json", b"{}")
    old.send(1, 2)
    assert "2 plans" in restored(new)
    assert new.files() == old.files()
    assert read_history(new.storage).entries == read_history(old.storage).entries
    assert new.send(3).failing is None
    assert "restored from its backup on worker-9" in old.send(33).failing
    newest = new_place("c", URL)
    assert "3 plans" in restored(newest)
    assert newest.files() == new.files()


def test_a_daemon_without_state_does_not_begin_anew(use_bucket, new_place, settings_of, restored):
    """It says the line to type; without a backup, and once there is a state, it begins."""
    server = use_bucket("localbucket")
    old, new = new_place("a", URL), new_place("b", URL)
    settings = settings_of(new)
    require_state(settings, backup_of(settings))
    assert restored(new) is None
    old.send(1)
    with pytest.raises(StateUnavailableError, match=r"sidecar restore-state .* --state-dir"):
        require_state(settings, backup_of(settings))
    restored(new)
    server.kill()
    require_state(settings, backup_of(settings))
    shutil.rmtree(new.run_dir)
    with pytest.raises(StorageError, match="not known"):
        require_state(settings, backup_of(settings))


def test_checkpoints_in_a_bucket(use_bucket, new_place):
    """The line to type has their URL, which people wrote, and not the folder that stands for it."""
    use_bucket("localbucket")
    new_place("a", URL).send(1)
    place = f"s3://{BUCKET}/ckpts"
    new = new_place("b", URL)
    settings = load(
        {"checkpoint_dir": place, "state_dir": new.folder, "run": "mnist", "state_backup": URL, "config": None}
    )
    with pytest.raises(StateUnavailableError, match=f"sidecar restore-state {place} --state-dir"):
        require_state(settings, backup_of(settings))
    words = ["restore-state", place, "--run", "mnist", "--state-backup", URL, "--state-dir", str(new.folder)]
    said = CliRunner().invoke(app, words)
    assert (said.exit_code, said.output.split()[0]) == (0, "restored"), said.output


def test_records_that_arrive_late_are_removed(use_bucket, new_place, restored, objects):
    """A daemon that was sending while it was replaced may leave one, which would be in the way of the new machine's."""
    use_bucket("localbucket")
    old, new = new_place("a", URL), new_place("b", URL)
    old.send(1)
    restored(new)
    (objects / "plans" / "000000000002.json").write_bytes(b"late")
    assert new.send(2).failing is None
    assert (objects / "plans" / "000000000002.json").read_bytes() == new.storage.read("plans/000000000002.json")


def test_every_moment_of_a_backup_is_a_whole_run(use_bucket, new_place, restored, objects, tmp_path):
    """A machine that is lost between any two objects leaves a run of fewer plans, with the saves of each result."""
    use_bucket("localbucket")
    place, sent, order = new_place("a", URL), tmp_path / "sent", []

    class Noting(ObjectStore):
        """Note the order of the objects."""

        def put(self, key, data):
            super().put(key, data)
            order.append(key)

        def create(self, key, data):
            created = super().create(key, data)
            order.append(key)
            return created

    backup = place.daemon(Noting(scheme="s3", bucket=BUCKET, prefix="backups/mnist", rules=RULES))
    history = place.evaluate(1, 2, 3)
    place.storage.replace("sinks/mlflow.json", b"{}")
    backup.update(publishing(), history)
    until(lambda: backup.has_delivered)
    place.end()
    shutil.copytree(objects, sent)
    whole = read_history(place.storage).entries
    counts = []
    for moment in range(1, len(order) + 1):
        shutil.rmtree(objects)
        for key in order[:moment]:
            (objects / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sent / key, objects / key)
        other = new_place(f"m{moment}", URL)
        if "run.json" not in order[:moment]:
            with pytest.raises(RecordError):
                restored(other)
            continue
        restored(other)
        entries = read_history(other.storage).entries
        assert entries == whole[: len(entries)]
        for closed in entries:
            assert all((other.run_dir / "evaluations" / closed.plan.checkpoint.folder).rglob("part-0*"))
        counts.append(len(entries))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_a_journal_with_segments_is_restored(use_bucket, new_place, restored):
    """Single files that a segment holds are not fetched, and compaction goes on."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    place.send(*range(1, 9), saves=0)
    history = read_history(place.storage)
    compaction = Compaction(place.storage, history.entries[0].plan.run, kept_plans=2, most_plans=3)
    for _ in compaction.carry_out(8):
        pass
    place.send(9, saves=0)
    new = new_place("b", URL)
    restored(new)
    assert read_history(new.storage).entries == read_history(place.storage).entries
    more = Compaction(new.storage, history.entries[0].plan.run, kept_plans=2, most_plans=3)
    for _ in more.carry_out(9):
        pass
    assert new.send(10).failing is None


def test_exports_and_the_link_to_the_best_one(use_bucket, new_place, restored, objects):
    """The link is an object of its own; an export that is gone goes, and one that is incomplete gets no link."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    place.evaluate(1)
    for name in ("ckpt-1@a", "ckpt-2@b"):
        place.storage.replace(f"exports/{name}/model.bin", name.encode())
    link = place.run_dir / "exports" / "best"
    link.symlink_to("ckpt-1@a")
    place.send(2)
    link.unlink()
    link.symlink_to("ckpt-2@b")
    shutil.rmtree(place.run_dir / "exports" / "ckpt-1@a")
    place.send(3)
    new = new_place("b", URL)
    restored(new)
    assert new.files() == place.files()
    assert (new.run_dir / "exports" / "best").readlink().name == "ckpt-2@b"
    (objects / "exports" / "best.json").write_text('{"export":"../../../etc","schema":1}')
    hostile = new_place("c", URL)
    restored(hostile)
    assert not (hostile.run_dir / "exports" / "best").is_symlink()


def cut(path):
    """Leave half of an object."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (lambda folder: cut(folder / "outcomes/000000000002.json"), RecordError, "outcomes/000000000002.json"),
        (lambda folder: cut(folder / "run.json"), RecordError, "run.json"),
        (lambda folder: (folder / "run.json").unlink(), RecordError, "run.json"),
        (lambda folder: (folder / "plans/000000000001.json").unlink(), StorageLostError, "plans/000000000001.json"),
        (lambda folder: (folder / "outcomes/000000000001.json").unlink(), StorageLostError, "000000000001"),
        (
            lambda folder: shutil.copyfile(folder / "plans/000000000001.json", folder / "plans/000000000002.json"),
            RecordError,
            "plans/000000000002.json",
        ),
        (
            lambda folder: (folder / "plans/000000000003.json").write_bytes(b"x" * (16 * 1024 * 1024 + 1)),
            RecordError,
            "plans/000000000003.json",
        ),
    ],
)
def test_a_damaged_backup_leaves_nothing(damage, error, named, use_bucket, new_place, restored, objects):
    """A record that is cut, missing, of another plan or too long is named, and no state directory is made."""
    use_bucket("localbucket")
    new_place("a", URL).send(1, 2)
    damage(objects)
    new = new_place("b", URL)
    with pytest.raises(error, match=named):
        restored(new)
    assert not new.folder.exists() or list(new.folder.iterdir()) == []


def test_nothing_is_begun_without_room(use_bucket, new_place, settings_of):
    """Sizes are those of the listing, so that they are known before the first object is fetched."""
    use_bucket("localbucket")
    new_place("a", URL).send(1)
    new = new_place("b", URL)
    settings = settings_of(new)
    with pytest.raises(StorageError, match="has room for"):
        restore(settings, backup_of(settings), "worker-9", AT, room=lambda _: 10)
    assert list(new.folder.iterdir()) == []


def test_hostile_names_are_passed_over(use_bucket, new_place, restored, objects):
    """Objects of other names, and heartbeats and pins of somebody, are not written anywhere."""
    use_bucket("localbucket")
    place = new_place("a", URL)
    place.send(1)
    for name in (
        "members/n1.json",
        "pins/x@y/z",
        "evil",
        "evaluations/.hidden",
        "state_backup.json",
        "sinks/a/.b/c",
        "plans/x.json",
    ):
        (objects / name).parent.mkdir(parents=True, exist_ok=True)
        (objects / name).write_bytes(b"evil")
    new = new_place("b", URL)
    restored(new)
    assert new.files() == place.files()


def test_two_machines_at_once(use_bucket, new_place, restored):
    """The one that comes later takes the run from the one before it, which has sent nothing yet."""
    use_bucket("localbucket")
    new_place("a", URL).send(1)
    first, second = new_place("b", URL), new_place("c", URL)
    restored(first, "worker-1")
    restored(second, "worker-2")
    assert "worker-2" in first.send(2).failing
    assert second.send(2).failing is None


def test_a_server_that_fails_or_a_folder_that_exists(use_bucket, new_place, restored):
    """Nothing is left, and the sentence names the bucket or the folder."""
    server = use_bucket("localbucket")
    new_place("a", URL).send(1)
    new = new_place("b", URL)
    (new.run_dir / "plans").mkdir(parents=True)
    with pytest.raises(StorageError, match=str(new.run_dir)):
        restored(new)
    shutil.rmtree(new.folder)
    server.kill()
    with pytest.raises(StorageError, match="s3://"):
        restored(new)
    assert BackupReplacedError.exit_code == 5


def test_the_command_may_stand_in_a_script(use_bucket, new_place, tmp_path):
    """It succeeds without a backup, with one, and when the state is there already."""
    use_bucket("localbucket")
    (tmp_path / "ckpts").mkdir()
    words = ["restore-state", str(tmp_path / "ckpts"), "--run", "mnist", "--state-backup", URL, "--state-dir"]
    said = [CliRunner().invoke(app, [*words, str(tmp_path / "b")])]
    new_place("a", URL).send(1)
    said += [CliRunner().invoke(app, [*words, str(tmp_path / "b")]) for _ in range(2)]
    assert [each.exit_code for each in said] == [0, 0, 0], [each.output for each in said]
    assert [each.output.split()[0] for each in said] == ["nothing", "restored", "nothing"]


def test_check_tries_the_bucket(use_bucket, new_place, settings_of, monkeypatch):
    """It names credentials and the run, and says what is missing: conditions, the server, credentials."""
    server = use_bucket("localbucket")
    place = new_place("a", URL)
    settings = settings_of(place)
    found = [backup(settings)]
    place.send(1)
    found.append(backup(settings))
    assert [each.ok for each in found] == [True, True], found
    assert "no backup yet; credentials: AWS_ACCESS_KEY_ID" in found[0].text
    assert "begun on worker-0" in found[1].text
    server.kill()
    assert "does not answer" in backup(settings).text
    use_bucket("s3rver")
    assert "If-None-Match" in backup(settings).text
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "bucket_credentials" in backup(settings).text


def test_a_state_in_a_bucket_is_not_restored_to_a_folder():
    """No daemon would read it there: the command says what to leave out, and asks no server."""
    words = ["restore-state", "s3://b/ckpts", "--state-dir", "s3://b/state", "--state-backup", "s3://b/backups"]
    ended = CliRunner().invoke(app, words)
    assert "leave state_backup out" in str(ended.exception)
