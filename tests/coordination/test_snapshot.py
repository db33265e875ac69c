"""A daemon that starts with a snapshot knows what one knows that read the whole journal."""

import dataclasses
import gzip
import hashlib
import json
import random
import tracemalloc
import typing
from dataclasses import replace

import long_journal
import pytest
from coordination.random_journals import closed_journal, fold, random_journal
from record_fields import field_types

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.snapshot import FOLD, RECENT, Snapshot, encode, restore, take
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import RecordError
from sidecar.protocol import records
from sidecar.protocol.codec import loads


def known(history):
    """All of it, but for how much of the past is still kept."""
    return replace(history, log=replace(history.log, entries=history.entries[-RECENT:], _profiles={}))


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_rest_are_the_whole(seed):
    """Wherever it was taken, through a file."""
    records = random_journal(seed, 150)
    whole = fold(records)
    history, rest = JournalState(log=EntryLog(keep=RECENT)), iter(records)
    at = random.Random(seed).randrange(1, len(records))
    for record in rest:
        history.apply(record)
        at -= 1
        if at <= 0 and history.open is None:
            break
    restored = restore(loads(Snapshot, b"".join(encode(take(history, "r")))))
    assert known(restored) == known(history)
    assert known(fold(rest, restored)) == known(whole)
    assert list(restored.exclusions.retired_workers) == list(whole.exclusions.retired_workers)


def test_a_snapshot_of_many_keys_takes_little_memory(tmp_path):
    """Neither their texts nor the plain file: they would be taken and freed every 200 plans, and leave holes."""
    history = fold(closed_journal())
    evaluated = history.totals.checkpoints["evaluated"]
    for number in range(20_000):
        key = f"ckpt-{number}", hashlib.sha256(str(number).encode()).hexdigest()
        evaluated.add(key)
        history.verdicts.succeed(key)
    tracemalloc.start()
    assert snapshot_store.write(PosixStorage(tmp_path), take(history, "r")) is None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    data = gzip.decompress((tmp_path / snapshot_store.PATH).read_bytes())
    keys = json.loads(data)["checkpoints"]["evaluated"]
    assert sorted(keys) == sorted(f"{digest}/{name}" for name, digest in evaluated)
    assert most < 1.05 * len(data)


def test_a_snapshot_is_encoded_in_small_parts():
    """All entries or all folders in one text would be taken and freed every 200 plans, and leave holes."""
    history = JournalState(log=EntryLog(keep=RECENT))
    for number in range(1, 1101):
        for record in long_journal.records(number, "r"):
            history.apply(record)
    parts = list(encode(take(history, "r")))
    assert max(map(len, parts)) < 16_384
    assert restore(loads(Snapshot, b"".join(parts))).folders == history.folders


def test_a_snapshot_folded_in_another_way_is_refused():
    """By its number, not by chance."""
    taken = take(fold(random_journal(1, 3)), "r")
    with pytest.raises(RecordError, match=r"\b99\b"):
        restore(replace(taken, fold=99))


def test_a_snapshot_of_the_release_before_is_believed():
    """It says nothing of losses in a row: they count from there on."""
    history = fold(random_journal(1, 10))
    assert history.exclusions.losses
    told = json.loads(b"".join(encode(take(history, "r"))))
    del told["losses"]
    restored = restore(loads(Snapshot, json.dumps(told).encode()))
    exclusions = replace(history.exclusions, losses={})
    assert known(restored) == replace(known(history), exclusions=exclusions)


FOLDS = {
    7: ("7e0cd7f7c213f286", "61d42a57740053b1"),
    8: ("7e0cd7f7c213f286", "c05648fe145338da"),
    9: ("c242ceb3e379ef08", "57ace4bc8ef3e015"),
    10: ("a31af16e106ceaf9", "0ea84c59c997a0e6"),
    11: ("59c75443ca84f2d4", "87a18a89d5bda38b"),
    12: ("59c75443ca84f2d4", "ef7398a97af54c4f"),
    13: ("3e5c7799a4e28c26", "dca2e0cc0bac5622"),
}
"""By `FOLD`: digests of the fields in the file, and of the file that one journal makes. A new FOLD gets a new line."""


def fields_below(kind, known=()):
    """Return the fields of a file by name, with their types, down to the journal's records, which have a schema."""
    if dataclasses.is_dataclass(kind) and kind not in known and kind.__module__ != records.__name__:
        return sorted((name, fields_below(hint, (*known, kind))) for name, hint in field_types(kind).items())
    if typing.get_origin(kind) is typing.Annotated:  # a limit, which is in no file
        return fields_below(typing.get_args(kind)[0], known)
    below = [fields_below(inner, known) for inner in typing.get_args(kind)]
    return [kind.__name__ if isinstance(kind, type) else str(typing.get_origin(kind) or kind), *below]


def digest_of(data):
    return hashlib.sha256(data).hexdigest()[:16]


def test_a_change_of_the_fold_raises_its_version():
    """A snapshot of another version is not believed, so daemons of two releases never mix what they made of a journal.

    If this fails, raise FOLD in `sidecar.coordination.snapshot` and add its line above: the digests are in the message.
    """
    shape = digest_of(repr(fields_below(Snapshot)).encode())
    result = digest_of(b"".join(encode(take(fold(closed_journal()), "r"))))
    assert FOLDS[FOLD] == (shape, result)
