"""A state directory in an object store keeps what one on a filesystem keeps: on real servers, and on bad ones."""

import hashlib
import os
import random
import re
import secrets
import threading

import pytest
from heartbeats import make_heartbeat
from object_servers import ObjectServer, page

from sidecar.coordination.heartbeats import Heartbeats, heartbeat_path
from sidecar.coordination.liveness import Liveness
from sidecar.coordination.object_storage import ObjectStorage
from sidecar.coordination.storage import MAX_RECORD_BYTES, PosixStorage
from sidecar.errors import NodeNameTakenError, RecordError, SettingsError, StorageError
from sidecar.settings import Settings
from sidecar.system.bucket_url import split_url
from sidecar.system.object_store import ObjectStore, ObjectStoreRules, StoredObject

RULES = ObjectStoreRules(bucket_timeout_seconds=5)
SERVERS = (
    pytest.param("moto_server"),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("localbucket", "azurite-blob")),
)


def opened(server, run="a", rules=RULES):
    """Return the storage of a run, as another daemon would open it, too."""
    scheme, _, bucket = server.url.partition("://")
    store = ObjectStore(scheme=scheme, bucket=bucket, prefix=f"state/{run}" if run else "", rules=rules)
    return ObjectStorage(store, f"{server.url}/state/{run}")


@pytest.fixture(params=["posix", *(server for server in SERVERS if server.values != ("localbucket",)), "gcs"])
def storage(request, tmp_path, use_bucket):
    """The storage that `Storage` describes, of each kind; localbucket cannot delete."""
    if request.param == "posix":
        return PosixStorage(tmp_path / "state" / "a")
    if request.param == "gcs":
        url = os.environ.get("TEST_GCS_URL") or pytest.skip("not tried here: TEST_GCS_URL names no bucket of Google's")
        scheme, bucket, prefix = split_url(f"{url}/{secrets.token_hex(8)}")
        return ObjectStorage(ObjectStore(scheme=scheme, bucket=bucket, prefix=prefix, rules=RULES), url)
    return opened(use_bucket(request.param))


@pytest.mark.seconds
def test_every_storage_keeps_the_same_promises(storage):
    """Create once, replace, cut, list, compare before a change, remove: names with any character, content of any."""
    assert (storage.read("run.json"), storage.names("plans"), storage.modified("plans")) == (None, [], {})
    storage.create("plans/10", b"prior")
    storage.create("plans/10", b"later")
    storage.create("plans/9", b"")
    odd = "members/w%20ö@1+2,=:.json"
    for content in (b"one", b"two"):
        storage.replace(odd, content, survives_crash=True)
    assert [storage.read(path) for path in ("plans/10", "plans/9", odd)] == [b"prior", b"", b"two"]
    assert [storage.read("plans/10", limit) for limit in (0, 3, 4, 5, 99)] == [b"p", b"prio", b"prior", *[b"prior"] * 2]
    if storage.survey("members") is not None:  # a filesystem makes none
        for content in (b"one", b"two"):
            storage.replace(odd, content)
            assert [found.content for found in storage.survey("members").values()] == [content]
    storage.replace("members/x", b"1")
    assert [storage.rename("members/x", "y"), storage.rename("members/x", "y")] == [True, False]
    assert storage.read("members/y") == b"1"
    storage.remove("members/y")
    storage.create("plans-of-others/1", b"")
    assert (storage.names("plans"), storage.names("members")) == (["10", "9"], [odd.partition("/")[2]])
    storage.create("evaluations/a/plan-1/states.json", b"{}")
    assert storage.names("evaluations") == ["a"]
    times = storage.modified("plans")
    assert (times.keys(), min(times.values()) > 1.7e9) == ({"9", "10"}, True)
    storage.replace("plans/10", b"marker", instead_of=b"another")
    assert storage.read("plans/10") == b"prior"
    storage.replace("plans/10", b"marker", instead_of=b"prior")
    assert storage.read("plans/10") == b"marker"
    storage.remove("plans/10", holding=b"prior")
    assert storage.names("plans") == ["10", "9"]
    storage.remove("plans/10", holding=b"marker")
    for _ in range(2):
        storage.remove("plans/9")
    assert storage.names("plans") == []
    storage.sync("plans")
    storage.sweep("plans", 1e12)
    for path in ("", "../x", "a//b", "a/./b", "a/", "a\0b"):
        for use in (storage.read, lambda path: storage.create(path, b""), storage.remove):
            with pytest.raises(RecordError, match=re.escape(f"{path!r} ")):
                use(path)
    with pytest.raises(RecordError, match=rf"plans/1\b.*{MAX_RECORD_BYTES}"):
        storage.create("plans/1", bytes(MAX_RECORD_BYTES + 1))


@pytest.mark.seconds
@pytest.mark.parametrize("name", SERVERS)
def test_of_daemons_that_create_at_once_one_decides(use_bucket, name):
    """Each of 20 names is created by eight clients at the same moment, and all of them read the same."""
    server = use_bucket(name)
    assert opened(server).probe() is (name != "localbucket")  # which ignores a stale etag of a put
    began, read = threading.Barrier(8), []

    def decide(number):
        mine = opened(server)
        for plan in range(20):
            began.wait()
            mine.create(f"plans/{plan}", b"%d" % number)
            read.append((plan, mine.read(f"plans/{plan}")))

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(read), len(set(read))) == (160, 20)


@pytest.mark.seconds
def test_a_store_that_ignores_conditions_is_refused(use_bucket):
    """Several daemons would decide the same plan: the message names what the store lacks, and nothing stays there."""
    storage = opened(server := use_bucket("s3rver"))
    with pytest.raises(SettingsError, match=r"s3://runs/state/a overwrote .*If-None-Match"):
        storage.probe()
    assert not opened(server, "").names("state")


def test_a_server_in_trouble_is_an_error_of_storage(monkeypatch):
    """An answer without end is cut, a missing bucket is no missing record, and a refusal names the right."""
    with ObjectServer({"state/a/run.json": b"x" * 100}) as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        store = ObjectStore(scheme="s3", bucket="b", prefix="state/a", rules=RULES)
        storage, answers = ObjectStorage(store, "s3://b/state/a", lambda: answers.append(1)), []
        huge = {"Content-Length": str(1 << 40), "ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
        server.answer = lambda *_: (200, huge, b"y" * 200_000)
        assert (storage.read("run.json", 64), answers) == (b"y" * 65, [1])
        for status, code, sentence in ((404, "NoSuchBucket", "no such bucket"), (403, "AccessDenied", "s3:GetObject")):
            server.answer = lambda *_, s=status, c=code: (s, {}, f"<Error><Code>{c}</Code></Error>".encode())
            with pytest.raises(StorageError, match=rf"s3://b/state/a/run\.json: .*{sentence}"):
                storage.read("run.json", 64)
        server.answer = lambda *_: (404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        assert storage.read("run.json", 64) is None


@pytest.mark.parametrize("folder", ["members", "segments"])
@pytest.mark.parametrize("body", [b"<Error/>", page([("state/a/plans/1", 1, '"x"')])], ids=["error", "ends_early"])
def test_a_listing_that_lacks_objects_is_an_error(monkeypatch, folder, body):
    """Nodes and parts of the journal do not vanish by it; one that was deleted does."""
    body = body.replace(b"plans", folder.encode()).replace(b">false<", b">true<")
    with ObjectServer({f"state/a/{folder}/{number}": b"" for number in range(1, 4)}) as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        store = ObjectStore(scheme="s3", bucket="b", prefix="state/a", rules=RULES)
        storage = ObjectStorage(store, "s3://b/state/a")
        assert storage.names(folder) == ["1", "2", "3"]
        server.answer = lambda _, query: (200, {}, body) if "list-type" in query else None
        for ask in (storage.names, storage.modified, storage.survey):
            with pytest.raises(StorageError, match="lacks objects that are there"):
                ask(folder)
        server.answer = lambda *_: None
        del server.objects[f"state/a/{folder}/3"]
        assert storage.names(folder) == ["1", "2"]


class Objects:
    """An object store in memory that counts its requests."""

    def __init__(self):
        self.contents, self.asked = {}, []

    def beginning(self, key, most):
        """Return the first bytes and the etag."""
        self.asked.append("GET")
        found = self.contents.get(key)
        return found and (found[:most], hashlib.sha256(found).hexdigest())

    def put(self, key, data):
        """Write an object, and return its etag."""
        self.asked.append("PUT")
        self.contents[key] = data
        return hashlib.sha256(data).hexdigest()

    def listing(self, folder=""):
        """List the objects below a folder."""
        self.asked.append("LIST")
        below = {key: data for key, data in self.contents.items() if key.startswith(folder)}
        return [StoredObject(key, len(data), 0, hashlib.sha256(data).hexdigest()) for key, data in below.items()]


class Beating:
    """A node that beats in a run on these objects."""

    def __init__(self, objects, node, lease_seconds=12.0, incarnation="i"):
        self.members = Heartbeats(ObjectStorage(objects, "s3://b/r"), "r")
        self.view, self.node, self.incarnation, self.beats = Liveness(node, lease_seconds), node, incarnation, 0

    def beat(self, now):
        """Write and read heartbeats as a daemon does; return whether its own was as it had written it."""
        stood, self.beats = self.members.survey(), self.beats + 1
        mine = make_heartbeat(node=self.node, beat=self.beats, incarnation=self.incarnation)
        self.members.write(mine)
        self.view.wrote(mine, now)
        self.view.observe(self.members.read_due(now), now)
        return stood


def test_one_listing_tells_whose_heartbeats_are_to_be_read():
    """A node that is alone lists and writes; others are read when they change; a rival under its name is noticed."""
    alone, other = Beating(objects := Objects(), "a"), Beating(objects, "b")
    assert [alone.beat(now) for now in (0.0, 4.0, 8.0)] == [False, True, True]
    assert objects.asked == ["LIST", "GET", "PUT", *["LIST", "PUT"] * 2]
    other.beat(9.0)
    objects.asked.clear()
    assert [alone.beat(12.0), alone.beat(16.0)] == [True, True]
    assert objects.asked == ["LIST", "PUT", "GET", "LIST", "PUT"]
    objects.contents.pop(heartbeat_path("a"))
    assert not alone.beat(20.0)
    rival = Beating(objects, "a", incarnation="j")

    def beat_in_turns():
        for now in range(24, 60, 4):
            rival.beat(now)
            alone.beat(now + 2.0)

    with pytest.raises(NodeNameTakenError):
        beat_in_turns()


@pytest.mark.parametrize("count", [2, 8])
def test_a_lost_node_is_noticed_within_15_seconds(count):
    """With the default beat and lease of a state in a bucket, whatever the order of the beats."""
    settings = Settings(checkpoint_dir="s3://b/c", state_dir="s3://b/s")
    for seed in range(40):
        chance, objects = random.Random(seed), Objects()
        nodes = [Beating(objects, f"n{number}", settings.lease_seconds) for number in range(count)]
        due = [(chance.random() * settings.beat_seconds, number) for number in range(count)]
        dies_at, now, gone = 100.0 + chance.random() * settings.beat_seconds, 0.0, False
        while not gone:
            now, number = min(due)
            due.remove((now, number))
            if number or now < dies_at:
                nodes[number].beat(now)
                due.append((now + settings.beat_seconds + 0.2 * chance.random(), number))
                gone = number > 0 and nodes[number].view.gone_since("n0") is not None
                assert now > dies_at or not gone
        assert settings.lease_seconds - settings.beat_seconds < now - dies_at < 15
