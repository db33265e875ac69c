"""Decide what an error about one entry means: no error but ENOENT says that it is gone."""

import errno

import pytest

from sidecar.system.entry_errors import Entry, Meaning, meaning

ENTRIES = [each for each in Entry if each is not Entry.RECORD]


@pytest.mark.parametrize("entry", Entry)
def test_only_an_absent_file_is_gone(entry):
    """Say so also of records: a journal asks for the record that does not exist yet."""
    assert meaning(entry, FileNotFoundError(errno.ENOENT, "No such file or directory")) is Meaning.GONE


@pytest.mark.parametrize("entry", Entry)
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EINTR, errno.EAGAIN])
def test_what_may_succeed_at_once_is_tried_once_more(entry, code):
    """Retry once: the same error again is one like any other."""
    assert meaning(entry, OSError(code, "")) is Meaning.RETRY
    assert meaning(entry, OSError(code, ""), again=True) is not Meaning.RETRY


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOTDIR, errno.ELOOP, None])
def test_any_other_error_leaves_an_entry_unknown_but_for_records(code):
    """Fail the whole request for a record alone: agreement depends on it."""
    error = OSError("odd") if code is None else OSError(code, "")
    assert {meaning(entry, error) for entry in ENTRIES} == {Meaning.UNKNOWN}
    assert meaning(Entry.RECORD, error) is Meaning.FAILS
