"""Read the meaning and the default of every setting from the source."""

import ast

import pytest

from sidecar.settings import Settings
from sidecar.settings.documented import MissingSentenceError, _setting, documented


def test_every_setting_is_documented_once():
    """In the order of the classes, in groups with a title."""
    groups = documented()
    assert sorted(each.name for _, _, group in groups for each in group) == sorted(Settings.model_fields)
    assert all(title and group for title, _, group in groups)


@pytest.mark.parametrize("sentence", ["", '"""Meaning only."""', '"""No end. Default: no end"""'])
def test_a_setting_without_its_sentences_is_refused(sentence):
    """The meaning and the reason for the default must be there, as sentences."""
    node, *after = ast.parse(f"replicas: Count = 1\n{sentence}").body
    with pytest.raises(MissingSentenceError, match="replicas"):
        _setting("replicas", node, next(iter(after), None))
