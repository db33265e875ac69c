"""Refuse names of earlier versions with the names that replaced them."""

import pytest
from settings.conftest import MINIMAL, problems

from sidecar.commands.options import FLAGS
from sidecar.settings import Settings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("settle_seconds", ("quiet_seconds", "group_settle_seconds")),
        ("proposal_patience_seconds", ("proposal_turn_seconds", "copy_turn_seconds", "result_turn_seconds")),
    ],
)
def test_a_setting_that_was_split_is_refused_with_its_successors(write, old, new):
    """An old file or variable must not lose its meaning without a word."""
    environ = MINIMAL | write(f"{old} = 1") | {f"SIDECAR_{old.upper()}": "1"}
    in_environment, in_file = sorted(problems({}, environ=environ))
    assert in_file.startswith(f"file {environ['SIDECAR_CONFIG']}, key {old}: ")
    assert in_environment.startswith(f"environment SIDECAR_{old.upper()}: ")
    assert all(name in in_file and f"SIDECAR_{name.upper()}" in in_environment for name in new)


def test_every_flag_gives_a_setting():
    """The table that error messages use cannot name a setting that does not exist."""
    assert set(FLAGS.values()) <= set(Settings.model_fields)
