"""Accept the same options for the same settings in all commands."""

import pytest

from sidecar.commands.options import FLAGS

COMMANDS = ("run", "eval", "history", "export", "status", "check", "requeue", "compact")


@pytest.mark.parametrize("command", COMMANDS)
def test_all_commands_accept_the_same_options(type_, here, command):
    """Scripts pass the same ones to all, also those that the help of a command does not show."""
    (here / "ckpts").mkdir()
    given = {"--checkpoint-dir": "ckpts", "--role": "chief", "--node": "a", "--replicas": "2", "--http": "x"}
    assert given.keys() <= FLAGS.keys()
    words = [word for pair in given.items() for word in pair]
    _, _, err = type_(command, *words, "--no-wait", *(["ckpt-1"] if command in ("eval", "requeue") else []))
    assert (
        err == "sidecar: option --http: 'x': write HOST:PORT, such as 127.0.0.1:19108, 0.0.0.0:19108 or [::1]:19108\n"
    )
