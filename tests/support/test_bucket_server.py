"""The servers of object storage do what tests of the product rely on, each as far as `SERVERS` says."""

import contextlib

import pytest
from bucket_server import SERVERS
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

pytestmark = pytest.mark.seconds

RETRIES = {"max_retries": 0}


@pytest.fixture
def connected(use_bucket):
    """`connected("moto_server")` is a server and obstore's client of it, configured as by a user."""

    def connect(name):
        server = use_bucket(name)
        return server, from_url(server.url, client_options={"timeout": "5s", "allow_http": True}, retry_config=RETRIES)

    return connect


def created(store, name, data):
    """Create an object unless it exists, and return whether it was created."""
    with contextlib.suppress(AlreadyExistsError):
        store.put(name, data, mode="create")
        return True
    return False


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_creates_lists_and_reads_ranges(name, connected):
    """One name has one creator, except on s3rver; a range by an outdated etag is refused where etags hold."""
    _, store = connected(name)
    winners = [created(store, "run/plan-1", bytes([each])) for each in range(2)]
    assert winners == ([True, True] if name == "s3rver" else [True, False])
    stale = store.head("run/plan-1")["e_tag"]
    store.put("run/plan-1", b"0123456789")
    store.put("run/plan-2", b"another")
    assert sorted(each["path"] for page in store.list("run") for each in page) == ["run/plan-1", "run/plan-2"]
    assert bytes(store.get_range("run/plan-1", start=2, end=5)) == b"234"
    current = store.head("run/plan-1")["e_tag"]
    assert bytes(store.get("run/plan-1", options={"if_match": current, "range": (2, 5)}).bytes()) == b"234"
    if name in {"moto_server", "azurite-blob"}:
        with pytest.raises(PreconditionError):
            store.get("run/plan-1", options={"if_match": stale, "range": (2, 5)})
    with pytest.raises(FileNotFoundError):
        store.head("run/plan-3")


@pytest.mark.takes_turns(3)
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_can_be_killed_stopped_and_started_again(name, connected):
    """A killed one refuses connections and returns at its address; objects on disk are there again."""
    server, store = connected(name)
    store.put("kept", b"1")
    server.kill()
    with pytest.raises(BaseError):
        store.head("kept")
    server.start()
    if name == "moto_server":
        with pytest.raises(FileNotFoundError):
            store.head("kept")
    elif name != "azurite-blob":
        assert store.head("kept")["size"] == 1
    server.stop()
    impatient = from_url(server.url, client_options={"timeout": "300ms", "allow_http": True}, retry_config=RETRIES)
    with pytest.raises(BaseError):
        impatient.head("kept")
    server.resume()
    store.put("after", b"2")
    assert store.head("after")["size"] == 1
