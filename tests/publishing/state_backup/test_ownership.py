"""One state directory owns a backup: the newest one that was created in `copies`."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from bucket_server import BUCKET
from state_places import RULES

from sidecar.publishing.state_backup.ownership import (
    BackupRefusedError,
    BackupReplacedError,
    Owner,
    claim,
    create_owner,
    newest_owner,
    open_backup,
    require_newest,
)

pytestmark = pytest.mark.seconds

URL = f"s3://{BUCKET}/backups"


def owner(nonce="n", run="r1"):
    """Return a record as a daemon writes it."""
    return Owner(run=run, nonce=nonce, node="worker-0", at="2026-01-31T12:00:00.000Z")


@pytest.fixture
def store(use_bucket):
    """The backup of a run on a server that checks conditions."""
    use_bucket("moto_server")
    return open_backup(URL, "mnist", RULES)


def test_the_newest_copy_owns_the_backup(store, new_place):
    """A restore creates the next record, from which the directory before it learns that it was replaced."""
    assert newest_owner(store) == (None, 0)
    place = new_place("a", URL)
    own = claim(store, place.storage, URL, owner())
    assert (own.number, claim(store, place.storage, URL, owner())) == (1, own)
    require_newest(store, own)
    create_owner(store, 2, owner("other"))
    assert newest_owner(store) == (owner("other"), 2)
    with pytest.raises(BackupReplacedError, match="worker-0"):
        require_newest(store, own)
    with pytest.raises(BackupReplacedError):
        claim(store, place.storage, URL, owner())


def test_of_many_machines_one_restores(use_bucket):
    """All others read whose record is there."""
    use_bucket("moto_server")
    with ThreadPoolExecutor(8) as pool:
        stores = [open_backup(URL, "mnist", RULES) for _ in range(8)]
        found = list(pool.map(lambda number: create_owner(stores[number], 1, owner(f"n{number}")), range(8)))
    assert len({each.nonce for each in found}) == 1


def test_another_url_begins_another_backup(store, new_place):
    """The number belongs to the URL in the settings."""
    place = new_place("a", URL)
    claim(store, place.storage, URL, owner())
    create_owner(store, 2, owner("other"))
    elsewhere = f"{URL}/more"
    assert claim(open_backup(elsewhere, "mnist", RULES), place.storage, elsewhere, owner()).url == elsewhere


def test_copies_without_end_are_refused(store):
    """Each is asked for, so somebody who may write there could keep a daemon busy for ever."""
    for number in range(1, 5):
        create_owner(store, number, owner())
    assert newest_owner(store, most=4)[1] == 4
    with pytest.raises(BackupRefusedError, match="3 objects"):
        newest_owner(store, most=3)


def test_a_store_that_ignores_the_condition(use_bucket):
    """It takes a second creation of one name."""
    use_bucket("s3rver")
    with pytest.raises(BackupRefusedError, match="If-None-Match"):
        create_owner(open_backup(URL, "mnist", RULES), 1, owner())
