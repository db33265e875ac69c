"""Stubs in a local folder show the objects below a URL, and reading one reads its object."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from fakes import FakeClock
from object_servers import ObjectServer, page

from sidecar.checkpoints.files import list_files, open_file, read_at, read_file, size_of
from sidecar.commands.from_settings import make_catalog
from sidecar.errors import IncompleteError, StorageError, VanishedError
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.pin import pin
from sidecar.settings import Settings
from sidecar.system.object_store import BucketError

BLOCK = 256 * 1024


class Bucket:
    """A server, and a catalog of the checkpoints on it, of which each scan lists the objects."""

    def __init__(self, server, state_dir):
        self.server, self.clock = server, FakeClock()
        self.settings = Settings(
            checkpoint_dir="s3://b/run", state_dir=state_dir, framework="torch", bucket_timeout_seconds=2
        )
        self.catalog = make_catalog(self.settings, self.clock)
        self.folder = self.settings.checkpoint_dir

    def scan(self):
        """Scan once more, ten seconds later."""
        self.clock.seconds += 10
        return self.catalog.scan()

    def names(self):
        """Return the complete checkpoints after two scans."""
        self.scan()
        return [found.checkpoint.name for found in self.scan().found]


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """A bucket without objects."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        made = Bucket(server, tmp_path / "state")
        yield made
        shutil.rmtree(made.folder)


def torch_file(size, seed=0):
    """Return a file as `torch.save` writes it: an archive of a small pickle and one storage of `size` bytes."""
    content = io.BytesIO()
    storage = hashlib.sha256(bytes([seed])).digest() * (size // 32)
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00X\x04\x00\x00\x00stepq\x01K\x07s.")
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", storage)
    return content.getvalue()


def safetensors_file(size):
    """Return a file of safetensors with one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(size)


def test_stubs_show_objects_and_take_no_space(bucket):
    """A stub has the object's size and time, and no block; a new, a changed and a deleted object are shown."""
    objects = bucket.server.objects
    objects |= {"run/a": b"1" * 10**6, "run/sub/b": b"22"}
    bucket.scan()
    status = (bucket.folder / "a").stat()
    assert (status.st_size, status.st_blocks, status.st_mtime) == (10**6, 0, 1767323045)
    assert size_of(bucket.folder, "sub/b") == 2
    inode = status.st_ino
    objects["run/a"] = b"2" * 10**6
    del objects["run/sub/b"]
    bucket.scan()
    assert (bucket.folder / "a").stat().st_ino != inode
    assert size_of(bucket.folder, "sub/b") is None
    assert list(list_files(bucket.folder).files) == ["a"]
    sent = len(bucket.server.requests)
    bucket.catalog.scan()
    assert len(bucket.server.requests) == sent, "the next listing is due in ten seconds"
    objects["run/c"] = b"3"
    bucket.catalog.scan(at_once=True)
    assert (len(bucket.server.requests), size_of(bucket.folder, "c")) == (sent + 1, 1), "a notice does not wait for it"


def test_an_object_is_read_in_blocks_that_are_kept(bucket):
    """Small reads near each other cost one request, large ones one; an object that is gone is gone."""
    content = os.urandom(5 * BLOCK + 7)
    bucket.server.objects["run/a"] = content
    bucket.scan()
    sent = len(bucket.server.requests)
    with open_file(bucket.folder, "a") as file:
        for at in (0, 10, 5000, BLOCK - 20):
            assert read_at(file, 30, at) == content[at : at + 30]
        assert len(bucket.server.requests) == sent + 1 + 1, "the last one ends in the second block"
        assert read_at(file, 10**9, 0) == content
        assert read_at(file, 10, len(content) - 3) == content[-3:]
        assert read_at(file, 10, len(content) + 3) == b""
        assert file.seek(BLOCK) == BLOCK
        assert file.read(5) == content[BLOCK : BLOCK + 5]
        assert len(bucket.server.requests) == sent + 3
    assert read_file(bucket.folder, "a", limit=10**7) == content
    with open_file(bucket.folder, "a") as file:
        counts = []
        for wait in (False, False, True):
            if wait:
                bucket.scan()
            sent = len(bucket.server.requests)
            read_at(file, 30, 0)
            counts.append(len(bucket.server.requests) - sent)
        assert counts[1:] == [0, 1], "a daemon that is idle holds no 2 MiB of blocks"
    bucket.server.objects["run/b"] = content
    bucket.scan()
    del bucket.server.objects["run/a"], bucket.server.objects["run/b"]
    with open_file(bucket.folder, "b") as file, pytest.raises(BucketError, match="gone"):
        read_at(file, 5, 0)
    bucket.scan()
    with pytest.raises(VanishedError), open_file(bucket.folder, "a"):
        pass


def test_a_stub_that_is_not_the_listed_object_is_not_read(bucket):
    """A file that something else put in the place of a stub is no object."""
    bucket.server.objects["run/a"] = b"1"
    bucket.scan()
    (bucket.folder / "a").unlink()
    Path(bucket.folder, "a").write_bytes(b"12")
    with pytest.raises(IncompleteError), open_file(bucket.folder, "a"):
        pass


@pytest.mark.parametrize("written", [torch_file, safetensors_file], ids=["torch", "safetensors"])
def test_a_checkpoint_costs_three_requests_and_its_bytes(bucket, tmp_path, written):
    """Finding a checkpoint in one file takes at most three requests, and pinning it at most 2 % more than its bytes."""
    content = written(40 << 20)
    name = "model-7.safetensors" if content[:2] != b"PK" else "model-7.pt"
    bucket.server.objects[f"run/{name}"] = content
    (found,) = bucket.scan().found
    reads = [request for request in bucket.server.requests if "list-type" not in request[1]]
    assert 1 <= len(reads) <= 3
    before = bucket.server.sent
    pinned = pin(found, tmp_path / "state" / "run" / "pins")
    assert bucket.server.sent - before == len(content)
    assert bucket.server.sent <= 1.02 * len(content)
    assert (pinned.folder / name).read_bytes() == content
    assert pinned.checkpoint.digest.endswith(":etag")


def test_a_pin_is_found_again_and_a_damaged_one_is_not(bucket, tmp_path):
    """A new process finds the pin by its verified content, with the same digest; a changed pin is broken."""
    bucket.server.objects["run/model-7.pt"] = torch_file(10**6)
    bucket.scan()
    (found,) = bucket.scan().found
    pins = tmp_path / "state" / "run" / "pins"
    pinned = pin(found, pins)
    offline = make_catalog(
        Settings(checkpoint_dir="s3://b/run", state_dir=tmp_path / "state"), FakeClock(), asks_bucket=False
    )
    assert offline.scan().by_key.keys() == {found.checkpoint.key}
    file = pinned.folder / "model-7.pt"
    file.write_bytes(file.read_bytes()[: 10**5])
    file.rename(file.with_name("kept"))  # the folder changes, so its pin is read again
    file.with_name("kept").rename(file)
    assert offline.scan().found == ()


def test_a_replaced_object_is_not_pinned_as_the_one_that_was_found(bucket, tmp_path):
    """An object that is replaced after it was found gives no pin, and the next listing finds the other one."""
    bucket.server.objects["run/model-7.pt"] = torch_file(10**6)
    bucket.scan()
    (found,) = bucket.scan().found
    bucket.server.objects["run/model-7.pt"] = torch_file(10**6, seed=1)
    pins = tmp_path / "state" / "run" / "pins"
    with pytest.raises((IncompleteError, StorageError)):
        pin(found, pins)
    assert not list(pins.glob("model*"))
    bucket.scan()
    (other,) = bucket.scan().found
    assert other.checkpoint.name == found.checkpoint.name
    assert other.checkpoint.digest != found.checkpoint.digest
    with pytest.raises(IncompleteError):  # the folder shows the other one by now
        pin(found, pins)
    assert pin(other, pins, room=DiskBudget()).checkpoint.key == other.checkpoint.key


def test_hostile_names_become_no_files(bucket):
    """Names that cannot be names of files are reported, and the others are found."""
    names = [f"run/{'n' * 300}", f"run/{'d/' * 30}x", "run/", "run/a/"]
    good = [("run/model-7.pt", len(torch_file(64)), '"x"'), ("run/a/b", 1, '"y"')]
    odd = [*((name, 5, '"y"') for name in names), ("run/huge", 2**62, '"z"'), ("run/larger", 2**64 - 1, '"z"')]
    bucket.server.objects["run/model-7.pt"] = torch_file(64)
    bucket.server.etag = lambda _: '"x"'
    bucket.server.answer = lambda _, query: (200, {}, page([*odd, *good])) if "list-type" in query else None
    assert bucket.names() == ["model-7.pt"]
    waiting = dict(bucket.scan().waiting)
    assert len(waiting) == 4  # of five; the last one is that there are more
    assert sorted(path.name for path in bucket.folder.iterdir()) == ["a", "model-7.pt"]


def test_deep_names_take_no_memory(bucket):
    """Each of them has 500 folders above it."""
    names = [(f"run/{number}/{'d/' * 500}x", 1, '"y"') for number in range(900)]
    bucket.server.answer = lambda _, query: (200, {}, page(names)) if "list-type" in query else None
    tracemalloc.start()
    assert bucket.names() == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6


def test_folders_of_checkpoints_that_are_gone_are_removed(bucket):
    """They would be listed in every scan."""
    bucket.server.objects |= {"run/a/b/c": b"1", "run/a/d": b"2", "run/e/f": b"3"}
    bucket.scan()
    del bucket.server.objects["run/a/b/c"], bucket.server.objects["run/e/f"]
    bucket.scan()
    assert sorted(str(path.relative_to(bucket.folder)) for path in bucket.folder.rglob("*")) == ["a", "a/d"]


@pytest.mark.parametrize("name", ["run/../../../tmp/evil", "run//x", "run/a\tb", "run/./x"])
def test_a_name_that_leads_elsewhere_is_refused_with_the_listing(bucket, name):
    """Obstore refuses a listing with such a name, so the error names the object that must go."""
    bucket.server.answer = lambda *_: (200, {}, page([(name, 1, '"x"')]))
    with pytest.raises(StorageError) as caught:
        bucket.scan()
    assert ascii(name) in str(caught.value)
    assert list(bucket.folder.iterdir()) == []


def test_a_name_that_is_file_and_folder_at_once_does_no_harm(bucket):
    """An object with others below its name, as consoles make it to show a folder, is left out."""
    bucket.server.objects |= {"run/a": b"", "run/a/b": b"2", "run/model-7.pt": torch_file(64)}
    assert bucket.names() == ["model-7.pt"]
    assert bucket.scan().waiting == ()
    assert size_of(bucket.folder, "a/b") == 1


def test_an_outage_keeps_what_was_found(bucket):
    """A server that fails for a while takes away no checkpoint: the next listing that succeeds finds it as it was."""
    bucket.server.objects["run/model-7.pt"] = torch_file(64)
    assert bucket.names() == ["model-7.pt"]
    before = bucket.scan().found
    bucket.server.answer = lambda *_: (503, {}, b"")
    with pytest.raises(StorageError, match="503"):
        bucket.scan()
    bucket.server.answer = lambda *_: None
    assert bucket.scan().found == before


SHORT = page([("run/a", 1, '"x"')]).replace(b">false<", b">true<")


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>log in</body></html>",
        b"<Error><Code>InternalError</Code></Error>",
        SHORT,
    ],
    ids=["login", "error", "no_token"],
)
def test_a_listing_that_lacks_objects_takes_no_checkpoint_away(bucket, body):
    """A page of a network, an error with status 200, a page that names no next one; what is gone is gone."""
    files = {f"run/model-{step}.pt": torch_file(64, step) for step in range(1, 4)}
    bucket.server.objects |= {"run/a": b"1", **files}
    names = bucket.names()
    assert sorted(names) == [f"model-{step}.pt" for step in range(1, 4)]
    for lost in (set(), {"run/model-1.pt", "run/model-3.pt"}):  # one is there
        for key in lost:
            del bucket.server.objects[key]
        bucket.server.answer = lambda _, query: (200, {}, body) if "list-type" in query else None
        with pytest.raises(StorageError, match="lacks objects that are there"):
            bucket.scan()
        bucket.server.answer = lambda *_: None
        assert bucket.names() == [name for name in names if f"run/{name}" not in lost]
    bucket.server.objects.clear()
    assert bucket.names() == []


def test_an_object_that_nobody_may_read_may_go(bucket):
    """A listing without it is whole, though the server does not say whether it is there."""
    bucket.server.objects |= {"run/model-7.pt": torch_file(64), "run/secret": b""}
    assert bucket.names() == ["model-7.pt"]
    del bucket.server.objects["run/secret"]
    bucket.server.answer = lambda path, _: (403, {}, b"") if path.endswith("secret") else None
    assert bucket.names() == ["model-7.pt"]
    assert not (bucket.folder / "secret").exists()


def test_names_that_differ_in_case_or_escapes_are_different_objects(bucket):
    """A listed name is the name, whatever a server or a filesystem could make of it."""
    odd = ["A", "a", "%2e%2e", "%ff", "%00", "ü", "a\\b", " ", "n" * 255]
    bucket.server.answer = lambda _, query: (
        (200, {}, page([(f"run/{name}", 1, '"x"') for name in odd])) if "list-type" in query else None
    )
    bucket.scan()
    assert sorted(path.name for path in bucket.folder.iterdir()) == sorted(odd)


def test_a_bucket_that_cannot_be_listed_is_an_error(bucket):
    """A listing that is refused names the right and the folder."""
    bucket.server.answer = lambda *_: (403, {}, b"")
    with pytest.raises(StorageError, match="allow s3:ListBucket"):
        bucket.scan()


KILLED = """
import os, sys
from sidecar.commands.from_settings import make_catalog
from sidecar.settings import Settings
settings = Settings(checkpoint_dir="s3://b/run", state_dir=sys.argv[1])
make_catalog(settings)
print(settings.checkpoint_dir, flush=True)
sys.stdin.read()
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.seconds
@pytest.mark.usefixtures("bucket")
def test_the_folder_is_removed_at_the_end_or_by_the_next_process(tmp_path):
    """A process removes its stubs; those of a killed one are removed by the next, those of a living one are not."""

    def begin(how):
        command = [sys.executable, "-c", KILLED, str(tmp_path), how]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def folder(process):
        return Path(process.stdout.readline().strip())

    def end(process):
        process.communicate(timeout=240)

    killed, living = begin("killed"), begin("ended")
    left, kept = folder(killed), folder(living)
    assert left.is_dir()
    assert left.stat().st_mode & 0o777 == 0o700
    end(killed)
    assert left.is_dir()
    following = begin("ended")
    own = folder(following)
    assert (left.exists(), kept.is_dir(), own.is_dir()) == (False, True, True)
    end(following)
    end(living)
    assert not kept.exists()
    assert not own.exists()
