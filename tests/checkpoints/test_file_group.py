"""Assign the files of a directory to groups: by their formats, or as the user's marker."""

import pytest

from sidecar.checkpoints.file_group import CompleteMarker, MarkerGroup, group_of


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ckpt-5.index", "ckpt-5.index"),
        ("ckpt-5.data-00000-of-00001", "ckpt-5.index"),
        ("m-5.keras", "m-5.keras"),
        ("events.out.tfevents.1", None),
    ],
)
def test_files_of_one_checkpoint_are_one_group(name, group):
    """Read the group from the name alone."""
    assert group_of(name, marker=None, formats=()) == group


@pytest.mark.parametrize(
    ("pattern", "name", "group"),
    [
        ("{name}.done", "ckpt-5.done", MarkerGroup("ckpt-5")),
        ("{name}.done", "ckpt-5.index", "ckpt-5.index"),
        ("DONE", "DONE", MarkerGroup(None)),
    ],
)
def test_the_users_marker_is_a_group_of_its_own(pattern, name, group):
    """A marker belongs to one checkpoint, or to all in the directory."""
    assert group_of(name, marker=CompleteMarker(pattern), formats=()) == group
