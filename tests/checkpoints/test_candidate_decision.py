"""Decide whether an inspected candidate is complete, waiting, given up or left out, by the rules alone."""

from dataclasses import replace

import pytest

from sidecar.checkpoints.candidate_decision import CandidateDecider, KnownCandidate, why_incomplete
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS, Inspection
from sidecar.errors import CorruptError, IncompleteError
from sidecar.protocol.states import Verdict

WHOLE = Inspection(digest="d" * 64, step=5, files=("ckpt-5.index",))
PARTIAL = IncompleteError("a shard is missing")
DAMAGED = CorruptError("the index is damaged")


@pytest.mark.parametrize(
    ("verdict", "unchanged_seconds", "is_written", "expected"),
    [
        (WHOLE, 0.0, True, None),
        (WHOLE, 2.9, False, "3 s"),
        (WHOLE, 3.0, False, None),
        (PARTIAL, 0.0, True, "a shard is missing"),
        (PARTIAL, 59.9, False, "a shard is missing"),
        (PARTIAL, 60.0, True, PARTIAL),  # though the state file names it
        (DAMAGED, 3.0, False, "the index is damaged"),  # it may be rewritten
        (DAMAGED, 60.0, False, DAMAGED),
    ],
)
def test_what_files_are(verdict, unchanged_seconds, is_written, expected):
    """Structure first, then time or the writer's word."""
    rules = DiscoveryRules(quiet_seconds=3.0, corrupt_after_seconds=60.0)
    found = why_incomplete(verdict, unchanged_seconds, rules, is_written=is_written)
    assert (expected in found) if isinstance(expected, str) else found is expected


@pytest.fixture
def decided(put):
    """Decide about a checkpoint that a real writer wrote, whose files have not changed since 0 s."""
    root = put("keras", "ckpt-3*")

    def decide(now, *, below="", inspection=None, **rules):
        format_ = FORMATS["tf_object"]
        (candidate,) = format_.candidates(root, list_files(root))
        known = KnownCandidate(
            format=format_,
            name=candidate.name,
            files=candidate.files,
            unchanged_since=0.0,
            inspected_at=0.0,
            verdict=inspection or format_.inspect(root, candidate.name),
        )
        decider = CandidateDecider(root=root, below=below, rules=DiscoveryRules(**rules))
        assert decider.ends(known) == (decider.rules.quiet_seconds, decider.rules.corrupt_after_seconds)
        return decider.decide(candidate, known, now)

    return decide


def test_whole_files_are_complete_once_they_are_quiet(decided):
    """Before that the reason says how long it takes; afterwards the checkpoint is named from the watched directory."""
    early = decided(2.9, below="epoch_1")
    assert (early.candidate.found, early.given_up) == (None, None)
    assert "3 s" in early.waiting
    late = decided(3.0, below="epoch_1")
    assert (late.candidate.found.checkpoint.name, late.waiting, late.given_up) == ("epoch_1/ckpt-3", None, None)


def test_broken_files_are_given_up_in_the_end(decided):
    """The record that settles them has the reason; the candidate is over."""
    error = CorruptError("bad magic")
    early = decided(59.9, inspection=error)
    assert (early.waiting, early.given_up, early.candidate.is_over) == ("bad magic", None, False)
    late = decided(60.0, inspection=error)
    assert (late.given_up.name, late.given_up.verdict, late.given_up.reason) == ("ckpt-3", Verdict.CORRUPT, "bad magic")
    assert late.candidate.is_over


def test_a_marker_is_looked_for_last(decided):
    """It is named by its path if nothing else is missing."""
    assert "ckpt-3.done" not in decided(1.0, complete_marker="{name}.done").waiting
    assert "ckpt-3.done" in decided(3.0, complete_marker="{name}.done").waiting
    assert "ckpt-3.done" in decided(1e6, complete_marker="{name}.done").waiting  # it is believed more than time


def test_another_name_of_the_same_state_is_left_out(decided):
    """Only if the other name is wanted, too."""
    inspection = replace(decided(0.0).candidate.verdict, same_as=("ckpt-2",))
    assert "ckpt-2" in decided(3.0, inspection=inspection).candidate.left_out
    assert decided(3.0, inspection=inspection, checkpoint_glob=("ckpt-3",)).candidate.found is not None
