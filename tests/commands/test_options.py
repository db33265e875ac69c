"""Accept the same options for the same settings in all commands."""

import ast
import re
from pathlib import Path

import pytest
import typer

import sidecar
from sidecar.commands import cli
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


FOREIGN = {"--address", "--labels", "--num-cpus", "--option", "--pids-limit", "--run-id"}
"""Options of Ray, Docker, MLflow and of users' scripts, which messages name."""


def texts_of(tree):
    """Return the texts of a module that are no docstrings, and have more than one word."""
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in documented)
    return [node.value for node in constants if isinstance(node.value, str) and " " in node.value.strip()]


def options_of(command):
    """Return the options of a command and of all commands below it."""
    below = (options_of(each) for each in getattr(command, "commands", {}).values())
    return {option for each in command.params for option in each.opts}.union(*below)


def test_messages_name_options_that_exist():
    """A person types them. The settings without an option have variables and a line of the file."""
    known = options_of(typer.main.get_command(cli.app)) | FOREIGN | {"--help"}
    modules = [ast.parse(path.read_text()) for path in Path(sidecar.__file__).parent.rglob("*.py")]
    named = {name for tree in modules for text in texts_of(tree) for name in re.findall(r"(?<!\S)--[a-z][a-z-]+", text)}
    assert named - known == set()
    assert named - FOREIGN


def test_the_ways_to_give_a_setting_include_its_option():
    """A setting without an option is not asked for in this way."""
    sources = [path.read_text() for path in Path(sidecar.__file__).parent.rglob("*.py")]
    asked = {name for source in sources for name in re.findall(r"""\bways\(["'](\w+)["']\)""", source)}
    assert "task" in asked
    assert asked - set(FLAGS.values()) == set()
