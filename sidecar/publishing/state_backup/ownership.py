"""Decide which state directory a backup is of: the newest one of the objects `copies/<number>.json`.

Each is created once and never changed, as a record of the journal. The first daemon with `state_backup` creates the
first one, and `sidecar restore-state` creates the next one before it reads anything. So the daemon of the earlier state
directory, which looks for the next number before each object that it sends, finds out that it has been replaced, and
sends nothing more. A store needs only create-if-absent for that, and one without it is refused.
"""

import secrets
from dataclasses import dataclass, replace
from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import create_and_read, parse
from sidecar.errors import SidecarError
from sidecar.protocol.codec import dumps
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import SCHEMA
from sidecar.publishing.state_backup.backup_objects import remove
from sidecar.system.bucket_url import split_url
from sidecar.system.object_store import ObjectStore, ObjectStoreRules

COPIES: Final = "copies"
OWN_PATH: Final = "state_backup.json"
"""The record in the state directory of the object in `copies` that is its own."""

_MOST_OWNERS: Final = 1000


class BackupReplacedError(SidecarError):
    """The backup belongs to another state directory, so this one must not send anything."""

    exit_code = 5


class BackupRefusedError(SidecarError):
    """The object store cannot hold a backup."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Name the state directory that sends to a backup. `node`, `at`: for people."""

    run: str
    nonce: str
    node: str
    at: str
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Say which of the objects in `copies` is that of a state directory.

    `restored`: the newest closed plan of the backup from which the directory was made, as long as it has sent nothing.
    Later records in the backup are those of the daemon before it, which was sending when it was replaced. `through`,
    `at`: for people, the newest plan that was sent, and when.
    """

    url: str
    number: int
    nonce: str
    restored: int | None = None
    through: int = 0
    at: str = ""
    schema: int = SCHEMA


def open_backup(url: str, run_name: str, rules: ObjectStoreRules) -> ObjectStore:
    """Return the store of a run's backup: the folder of that name below the URL. Nothing is sent yet."""
    scheme, bucket, prefix = split_url(url)
    return ObjectStore(scheme=scheme, bucket=bucket, prefix=f"{prefix}/{run_name}".strip("/"), rules=rules)


def owner_path(number: int) -> str:
    """Return the key of an object in `copies`."""
    return f"{COPIES}/{number:06d}.json"


def newest_owner(store: ObjectStore, most: int = _MOST_OWNERS) -> tuple[Owner | None, int]:
    """Return the newest record in `copies`, and its number; None and 0 if there is no backup. Raises as `read_owner`.

    There is one for each restore, so they are few. Raises `BackupRefusedError` for very many, which nobody made so.
    """
    number = 0
    while store.exists(owner_path(number + 1)):
        number += 1
        if number > most:
            raise BackupRefusedError(
                f"the backup has more than {most} objects in {COPIES}/, one for each restore: that is not one "
                "of this program; name another folder as state_backup"
            )
    return (read_owner(store, number) if number else None), number


def read_owner(store: ObjectStore, number: int) -> Owner | None:
    """Return one of the records in `copies`; None if there is none. Raises `BucketError` and `RecordError`."""
    data = store.content(owner_path(number), SMALL.size)
    return None if data is None else parse(Owner, owner_path(number), data)


def create_once(store: ObjectStore, key: str, data: bytes) -> bytes:
    """Create an object, and return its content: these bytes, or those of the program that created it first.

    Raises `BackupRefusedError` for a store that ignores the condition, or does not show a write at once.
    """
    if store.create(key, data) and store.create(key, data):
        raise BackupRefusedError(
            "the object store ignores the condition If-None-Match, so two machines could write one backup: choose a "
            "store that creates an object only if it is absent, as Amazon S3, Google Cloud Storage and Azure do"
        )
    if (found := store.content(key, SMALL.size)) is None:
        raise BackupRefusedError(f"the object store does not show {key}, which it has taken: choose another one")
    return found


def create_owner(store: ObjectStore, number: int, owner: Owner) -> Owner:
    """Create a record in `copies`, and return the one that is there: this one, or that of another program.

    Raises as `create_once` and `read_owner`.
    """
    return parse(Owner, owner_path(number), create_once(store, owner_path(number), dumps(owner)))


def try_out(store: ObjectStore) -> None:
    """Try what a backup needs, with an object that is deleted afterwards. Raises as `create_once`."""
    key = f"{COPIES}/check-{secrets.token_hex(8)}"
    create_once(store, key, key.encode())
    remove(store, key)


def claim(store: ObjectStore, storage: Storage, url: str, owner: Owner) -> Own:
    """Return the record of this state directory; begin the backup if there is none.

    Raises `BackupReplacedError` if another directory is the newest one, and as `create_owner`.
    """
    first = Own(url=url, number=1, nonce=secrets.token_hex(16))
    own = parse(Own, OWN_PATH, create_and_read(storage, OWN_PATH, dumps(first), SMALL.size))
    if own.url != url:
        own = first
        storage.replace(OWN_PATH, dumps(own), survives_crash=True)
    found = create_owner(store, own.number, replace(owner, nonce=own.nonce))
    if found.nonce != own.nonce:
        raise BackupReplacedError(
            f"{url} holds the backup of run {found.run}, which node {found.node} began at {found.at} from another "
            "state directory: name another folder as state_backup; or, if that machine is gone, move this state "
            "directory away and run `sidecar restore-state`"
        )
    require_newest(store, own)
    return own


def require_newest(store: ObjectStore, own: Own) -> None:
    """Raise `BackupReplacedError` if the run was restored on another machine."""
    if not store.exists(owner_path(own.number + 1)):
        return
    by = read_owner(store, own.number + 1)
    where = "" if by is None else f" on {by.node} at {by.at}"
    raise BackupReplacedError(
        f"the run was restored from its backup{where}, so this state directory sends nothing more to it: stop this "
        "daemon; or, to go on here, stop that one, move this state directory away, and run `sidecar restore-state`"
    )
