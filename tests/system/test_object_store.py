"""Requests to an object store are bounded, need stated credentials, and fail with what to do."""

import contextlib
import errno
import io
import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeClock
from object_servers import ObjectServer, page

from sidecar.errors import SettingsError
from sidecar.system import object_store
from sidecar.system.object_store import BucketError, ObjectStore, ObjectStoreRules, credential_source

SECRET = "a-secret-nobody-may-see"


@pytest.fixture
def server(monkeypatch):
    """A server that works, named by the environment."""
    for name in [each for each in os.environ if each.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    with ObjectServer() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(server, clock):  # noqa: ARG001 - the environment names it
    """A store of the server, with requests that may take two seconds."""
    return ObjectStore(
        scheme="s3", bucket="b", prefix="run", rules=ObjectStoreRules(bucket_timeout_seconds=2.0), clock=clock
    )


def failed(call):
    """Return the error of a request that fails, which shows no secret."""
    with pytest.raises(BucketError) as caught:
        call()
    assert SECRET not in f"{caught.value} {caught.value.filename}"
    assert caught.value.__cause__ is None
    return caught.value


def test_it_lists_and_reads(server, store):
    """A listing has names below the prefix, sizes, times and etags; parts and whole objects are read by them."""
    content = os.urandom(40 << 20)
    server.objects |= {"run/a.pt": content, "run/b/c.pt": b"12345", "another": b""}
    listed = {found.key: found for found in store.listing()}
    assert listed.keys() == {"a.pt", "b/c.pt"}
    found = listed["a.pt"]
    assert (found.size, found.modified_ns) == (len(content), 1767323045 * 10**9)
    assert store.read("a.pt", found.etag, 10, 20) == content[10:20]
    with io.FileIO(os.memfd_create("fetched"), "r+") as into:
        store.fetch("a.pt", found.etag, found.size, into)
        assert into.seek(0) == 0
        assert into.read() == content
    assert len(server.requests) == 5  # a listing, a part, and three parts of 16 MiB


def test_a_replaced_object_is_no_other_object(server, store):
    """Another etag is refused by the server, and noticed here where a server ignores the condition."""
    server.objects["run/a"] = b"old"
    (found,) = store.listing()
    server.objects["run/a"] = b"new"
    assert failed(lambda: store.read("a", found.etag, 0, 3)).errno == errno.ESTALE
    server.answer = lambda path, query: server.usual(path, query, {"Range": "bytes=0-2"})
    assert failed(lambda: store.read("a", found.etag, 0, 3)).errno == errno.ESTALE


@pytest.mark.parametrize(
    ("status", "code", "number", "remedy"),
    [
        (404, "NoSuchBucket", errno.ENOENT, "bucket_endpoint"),
        (403, "AccessDenied", errno.EACCES, "allow s3:ListBucket for s3://b/run"),
        (401, "InvalidToken", errno.EACCES, "InvalidToken"),
        (429, "SlowDown", errno.ETIMEDOUT, "429 (SlowDown)"),
        (503, "SlowDown", errno.ETIMEDOUT, "503"),
        (500, SECRET, errno.ETIMEDOUT, "500"),
        (400, "ExpiredToken", errno.EACCES, "the credentials have expired"),
        (403, "RequestTimeTooSkewed", errno.EACCES, "the clock of this machine"),
    ],
)
def test_an_error_says_what_to_do(server, store, status, code, number, remedy):
    """Each kind has its number and its remedy; nothing of the answer but the code is shown."""
    body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
    server.answer = lambda *_: (status, {}, body)
    error = failed(store.listing)
    assert (error.errno, remedy in str(error)) == (number, True), error


def test_many_requests_at_once_answer_as_each_of_them_does(server, store):
    """Objects are cut, absent ones are None, listings are whole; a refusal names the right that its request needs."""
    server.objects |= {"run/a": b"12345", "run/plans/1": b"", "run/plans/2": b"2"}
    found, listed = store.together({"a": 2, "b": 9, **dict.fromkeys(map(str, range(100)), 1)}, ("plans", "none"))
    assert (found["a"][0], found["b"], len(found)) == (b"12", None, 102)
    assert ([each.key for each in listed["plans"]], listed["none"]) == (["plans/1", "plans/2"], [])
    for refused, right in (("list", "ListBucket"), ("get", "GetObject")):
        server.answer = lambda _, query, refused=refused: (
            (403, {}, b"") if ("list-type" in query) == (refused == "list") else None
        )
        assert right in str(failed(lambda: store.together({"a": 1}, ("plans",))))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Error>",
        b'{"contents": []}',
        page([("run/a", 1, '"x"', "yesterday")]),
        page([("run/a", 1, '"x"')]).replace(b"run/a", b"run/\xff\xfe"),
        page([("run/a", "-1", '"x"')]),
        page([("run/a", 1, '"x"', "+262142-01-01T00:00:00Z")]),
    ],
    ids=["empty", "torn", "json", "odd_time", "not_utf8", "negative_size", "far_future"],
)
def test_an_answer_that_is_not_one_of_an_object_store_is_named(server, store, body):
    """The server answers, so the network is not to blame."""
    server.answer = lambda *_: (200, {}, body)
    assert "not that of an object store" in str(failed(store.listing))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_takes_no_signature_and_no_content_elsewhere(server, store, status):
    """Obstore follows one where it reads, without the signature; what is to be written stays here."""
    with ObjectServer({"run/a": b"other"}) as other:
        moved = f"<Error><Message>{SECRET}</Message></Error>".encode()
        server.answer = lambda path, _: (status, {"Location": f"{other.address}{path}"}, moved)
        assert store.beginning("a", 9)[0] == b"other"
        for write in (lambda: store.put("b", b"content"), lambda: store.create("b", b"content")):
            failed(write)
        assert other.objects == {"run/a": b"other"}
        assert other.requests
        assert not any({"authorization", "cookie"} & {name.lower() for name in sent} for _, _, sent in other.requests)


def test_a_replacement_between_two_parts_is_noticed(server, store):
    """A large object is fetched in parts, which are those of one object."""
    server.objects["run/a"] = bytes(40 << 20)
    (found,) = store.listing()

    def replace(_, query):
        if "list-type" not in query and len(server.requests) > 2:
            server.objects["run/a"] = bytes(39 << 20) + b"1"

    server.answer = replace
    with io.FileIO(os.memfd_create("fetched"), "r+") as into:
        assert failed(lambda: store.fetch("a", found.etag, found.size, into)).errno == errno.ESTALE


def test_a_refused_object_names_the_right_to_read(server, store):
    """403 for an object names the right to read objects."""
    server.answer = lambda *_: (403, {}, b"")
    assert "s3:GetObject" in str(failed(lambda: store.read("a", "", 0, 1)))


def test_a_busy_server_is_left_alone_for_a_while(server, store, clock):
    """After a failure nothing is sent until a pause is over, which grows up to a minute; a success ends that."""
    server.answer = lambda *_: (503, {}, b"")
    pauses = []
    failed(store.listing)
    for _ in range(8):
        sent, begin = len(server.requests), clock.seconds
        while len(server.requests) == sent:
            clock.seconds += 0.5
            assert "503" in str(failed(store.listing))
        pauses.append(clock.seconds - begin)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    server.answer = lambda *_: None
    clock.seconds += 60
    assert store.listing() == []
    assert store.listing() == []


@pytest.mark.seconds
def test_a_server_that_does_not_answer_is_given_up(server, clock):
    """Silence, a body that never ends and a closed port end within the bound of a request and its retries."""
    rules = ObjectStoreRules(bucket_timeout_seconds=0.3)
    store = ObjectStore(scheme="s3", bucket="b", prefix="run", rules=rules, clock=clock)
    server.answer = lambda *_: time.sleep(3)
    begin = time.monotonic()
    assert failed(store.listing).errno == errno.ETIMEDOUT
    clock.seconds += 100
    server.answer = lambda *_: (206, {"Content-Length": "100", "ETag": "x", "Content-Range": "bytes 0-99/100"}, b"1")
    assert failed(lambda: store.read("a", "", 0, 100)).errno == errno.ETIMEDOUT
    assert time.monotonic() - begin < 10


def test_a_wrong_number_of_bytes_is_an_error(server, store):
    """A part that is longer than it was asked for is no part of a checkpoint."""
    body = b"1" * 50
    server.answer = lambda *_: (206, {"ETag": '"x"', "Content-Range": "bytes 0-49/100"}, body)
    assert failed(lambda: store.read("a", '"x"', 0, 10)).errno in (errno.EIO, errno.ETIMEDOUT)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"ETag": '"x"'}),
        (206, {"ETag": '"x"'}),
        (206, {"ETag": '"x"', "Content-Range": "bytes 50-59/100"}),
        (206, {"ETag": '"x"', "Content-Range": "bytes -5-4/10"}),
        (302, {"Location": "/b/run/a"}),
    ],
    ids=["whole", "no_range", "other_range", "negative_range", "in_circles"],
)
def test_a_part_that_nobody_asked_for_is_not_taken_for_silence(server, store, status, headers):
    """A proxy that does not know ranges is to blame, and not the network."""
    server.answer = lambda *_: (status, headers, b"1" * 10)
    assert "not that of an object store" in str(failed(lambda: store.read("a", '"x"', 0, 10)))


def test_an_etag_that_a_proxy_calls_weak_is_the_same(server, store):
    """The listing has it without the mark. The number of bytes is compared all the same."""
    server.answer = lambda *_: (206, {"ETag": 'W/"x"', "Content-Range": "bytes 0-9/10"}, b"1" * 10)
    assert store.read("a", '"x"', 0, 10) == b"1" * 10
    assert failed(lambda: store.read("a", '"y"', 0, 10)).errno == errno.ESTALE


def test_too_many_objects_are_refused(server, store, monkeypatch):
    """A listing without an end is given up at a number of objects."""
    monkeypatch.setattr(object_store, "MOST_OBJECTS", 2500)
    pages = iter(range(10**6))
    server.answer = lambda *_: (
        200,
        {},
        page(((f"run/{next(pages)}-{each}", 1, '"x"') for each in range(1000)), "more"),
    )
    assert failed(store.listing).errno == errno.E2BIG
    assert len(server.requests) < 10


@pytest.mark.parametrize(("names", "most_requests"), [(1, 200), (1000, 3)])
def test_a_page_that_comes_again_is_refused_at_once(server, store, names, most_requests):
    """A server that ignores the token of the next page would send the first one for two minutes."""
    server.answer = lambda *_: (200, {}, page([(f"run/{each}", 1, '"x"') for each in range(names)], "same"))
    assert "repeats an object" in str(failed(store.listing))
    assert len(server.requests) <= most_requests


def test_an_object_and_a_folder_may_have_the_same_name(server, store):
    """A console makes `a/` to show a folder, which obstore calls `a`."""
    server.answer = lambda *_: (200, {}, page([("run/a", 1, '"x"'), ("run/a/", 0, '"y"')]))
    assert [found.key for found in store.listing()] == ["a"]


@pytest.mark.seconds
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_takes_bounded_memory(server, store, status, tmp_path):
    """A listing and an error without end are given up; obstore would hold all of them. The next request is not hurt."""
    store = replace(store, upload_bytes=128 << 20)
    (tmp_path / "file").write_bytes(b"content")
    body = mmap.mmap(-1, 600_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # pages that are read take none
    server.answer = lambda *_: (status, {}, body)
    asked = [store.listing, lambda: store.together({}, ("plans",))]
    if status != 200:
        asked = [lambda: store.beginning("a", 1), lambda: store.read("a", "", 0, 1), lambda: store.create("a", b"")]
        asked.append(lambda: store.put("a", tmp_path / "file"))
    for ask in asked:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; the last answer may not be freed yet
        before = peak_bytes()
        assert failed(ask).errno == errno.EMSGSIZE
        assert peak_bytes() - before < 256 << 20
    server.answer = lambda *_: None
    server.objects["run/a"] = b""
    assert [found.key for found in store.listing()] == ["a"]


def peak_bytes():
    """Return the most memory that this process has held."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(("bound", "value"), [("empty_seconds", 0.5), ("empty_cpu_seconds", 0.02)])
@pytest.mark.parametrize("objects", [0, 3])
def test_pages_without_objects_are_given_up_after_a_time_and_by_the_work_they_make(
    server, store, bound, value, objects
):
    """One sentence says so; nothing is asked any more. Without the bounds a listing was held for two minutes."""
    store = replace(store, **{bound: value})
    pages = iter(range(10**6))

    def answer(*_):
        number = next(pages)
        return 200, {}, page([(f"run/{number}", 1, '"x"')] if number < objects else (), "more")

    server.answer = answer
    begin = time.monotonic()
    error = failed(store.listing)
    assert (error.errno, "page after page" in str(error)) == (errno.EIO, True)
    assert time.monotonic() - begin < 25
    asked = len(server.requests)
    with contextlib.suppress(BucketError):
        store.exists("run/a")  # another request, while which the listing would go on
    assert len(server.requests) <= asked + 2


def test_a_listing_has_two_minutes(server, store):
    """One that brings objects slowly ends at last."""
    server.answer = lambda *_: (200, {}, page((), "more"))
    assert failed(replace(store, listing_seconds=0.5).listing).errno == errno.ETIMEDOUT


def test_the_source_of_credentials_is_named_without_them():
    """Variables are named, never their values; without any, the error names all ways."""
    environ = {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": SECRET}
    rules = ObjectStoreRules()
    assert credential_source("s3", rules, environ) == "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    with pytest.raises(SettingsError, match=r"GOOGLE_APPLICATION_CREDENTIALS.*bucket_credentials to machine"):
        credential_source("gs", rules, environ)
    assert "metadata" in credential_source("az", ObjectStoreRules(bucket_credentials="machine"), environ)
    assert "anonymous" in credential_source("az", ObjectStoreRules(bucket_credentials="none"), environ)


ASK = """
import sys
from sidecar.system.object_store import ObjectStore, ObjectStoreRules
for credentials in ("none", "environment"):
    rules = ObjectStoreRules(bucket_endpoint=sys.argv[2], bucket_credentials=credentials, bucket_timeout_seconds=1)
    try:
        ObjectStore(scheme=sys.argv[1], bucket="b", prefix="run", rules=rules).listing()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.seconds
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_no_request_goes_to_an_address_that_nobody_named(needs, server, tmp_path, scheme):
    """Without credentials, and without any need of them, a process connects to the endpoint alone, as strace shows."""
    strace = needs("strace")
    trace = tmp_path / "trace"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1"}
    command = [sys.executable, "-c", ASK, scheme, server.address]
    done = subprocess.run(
        [strace, "-f", "-qq", "-e", "trace=connect,sendto", "-o", trace, *command],
        env=environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "SettingsError there are no credentials" in done.stdout
    called = [line for line in trace.read_text().splitlines() if "AF_INET" in line]
    assert called, done.stdout
    assert all("127.0.0.1" in line for line in called), called
