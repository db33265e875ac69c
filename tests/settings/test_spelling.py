"""Options are spelled as the settings that they give."""

from sidecar.commands.options import FLAGS
from sidecar.settings import Settings


def test_every_flag_gives_a_setting():
    """The table that error messages use cannot name a setting that does not exist."""
    assert set(FLAGS.values()) <= set(Settings.model_fields)
