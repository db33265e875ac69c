"""When files count as a complete checkpoint: the whole table."""

import pytest

from sidecar.checkpoints.completeness import Complete, Corrupt, Wait, completeness
from sidecar.checkpoints.formats import Inspection
from sidecar.errors import CorruptError, IncompleteError

WHOLE = Inspection(digest="d" * 64, step=5, files=("ckpt-5.index",))
PARTIAL = IncompleteError("a shard is missing")
DAMAGED = CorruptError("the index is damaged")
MARKER = "ckpt-5.done"


@pytest.mark.parametrize(
    ("verdict", "unchanged_seconds", "committed", "missing_marker", "expected"),
    [
        (WHOLE, 0.0, True, None, Complete),
        (WHOLE, 2.9, False, None, Wait),
        (WHOLE, 3.0, False, None, Complete),
        (WHOLE, 3.0, False, MARKER, Wait),
        (WHOLE, 0.0, True, MARKER, Wait),
        (WHOLE, 1e6, True, MARKER, Wait),  # for ever: the user's marker is believed more than time
        (PARTIAL, 0.0, True, None, Wait),
        (PARTIAL, 59.9, False, None, Wait),
        (PARTIAL, 60.0, True, None, Corrupt),  # though the state file names it
        (DAMAGED, 3.0, False, None, Wait),  # it may be rewritten
        (DAMAGED, 60.0, False, None, Corrupt),
        (DAMAGED, 60.0, False, MARKER, Corrupt),
    ],
)
def test_what_files_are(verdict, unchanged_seconds, committed, missing_marker, expected):
    """Structure first, then time or the writer's word, then the user's marker."""
    decision = completeness(
        verdict,
        unchanged_seconds,
        committed=committed,
        missing_marker=missing_marker,
        quiet_seconds=3.0,
        corrupt_after_seconds=60.0,
    )
    assert type(decision) is expected
    if isinstance(decision, Wait):
        assert (MARKER if missing_marker else "3 s" if verdict is WHOLE else str(verdict)) in decision.reason
    if isinstance(decision, Corrupt):
        assert decision.error is verdict
