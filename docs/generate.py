#!/usr/bin/env python3
"""Write what follows from the code: pages of docs/reference/, blocks in other pages. `make reference` runs this file.

Settings, commands, metrics and exit codes are read from the modules that define them, log events by `log_calls`. A test
compares the pages in the repository with the output of `pages`, and `blocks` fills the blocks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import typer
from blocks import filled
from log_calls import log_events

import sidecar
from sidecar import errors
from sidecar.commands import cli
from sidecar.commands.options import FLAGS
from sidecar.policy.eligibility import Reason
from sidecar.protocol import records, states
from sidecar.publishing.events import EVENTS
from sidecar.publishing.families import FamilyFacts, families
from sidecar.publishing.sentences import sentence
from sidecar.settings import PREFIX
from sidecar.settings.documented import MissingSentenceError, documented

FOLDER: Final = Path(__file__).with_name("reference")
PACKAGE: Final = Path(sidecar.__file__).parent

_NOTE: Final = "<!-- Written by `make reference` from {source}: change that, and not this page. -->"


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its file name."""
    return {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "metrics.md": metrics_page(),
        "exit-codes.md": exit_codes_page(),
        "log-events.md": log_events_page(),
        "sidecar.1": man_page(),
    }


# -- settings ----------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of all settings, in the groups of their source."""
    lines = [
        *_head("Settings", "sidecar/settings/model.py"),
        "Settings come from a TOML file, from the environment and from options of the command line. An option",
        "overrides a variable of the environment, and a variable overrides the file. The file is the one that",
        "`--config` or `SIDECAR_CONFIG` names, else `sidecar.toml` in the current directory, else the table",
        "`[tool.sidecar]` of its `pyproject.toml`. An empty variable counts as not set.",
        "",
        "A link may name a setting: `settings.md#stall_seconds`.",
        "",
    ]
    flags = {field: flag for flag, field in FLAGS.items()}
    groups = documented()
    topics = [(title, ", ".join(f"[`{each.name}`](#{each.name})" for each in group)) for title, _, group in groups]
    lines += _table(("Topic", "Settings"), topics)
    for title, about, group in groups:
        lines += ["", f"## {title}", *(["", about] if about else [])]
        for each in group:
            default = ": ".join(filter(None, (each.default, each.reason)))
            lines += ["", f"### `{each.name}`", "", each.meaning, "", f"- Default: {default}"]
            given = [
                each.type,
                f"`{PREFIX}{each.name.upper()}`",
                *([f"`{flags[each.name]}`"] if each.name in flags else []),
            ]
            lines += [f"- Type, variable, option: {' · '.join(given)}"]
    return _text(lines)


# -- commands ----------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the page of all commands."""
    root: Any = typer.main.get_command(cli.app)
    lines = [
        *_head("Commands", "sidecar/commands/cli.py and sidecar/commands/options.py"),
        _sentence("sidecar", root.help),
        "",
        "`-h` or `--help` after a command shows its help. The commands that inspect a run accept each other's options",
        "for settings, so that scripts can pass the same options to all; this page lists those that affect a command.",
        "",
        *parameters("sidecar", root),
    ]
    for name, command in _commands(root):
        arguments = [_argument(each) for each in command.params if each.param_type_name == "argument"]
        usage = " ".join(["sidecar", name, "[OPTIONS]", *arguments])
        lines += ["", f"## sidecar {name}", "", _sentence(name, command.help), "", f"`{usage}`", ""]
        lines += parameters(name, command)
        lines += ["", "```console", *re.findall(r"^ *(\$ .*)$", command.epilog or "", re.MULTILINE), "```"]
    return _text(lines)


def man_page() -> str:
    """Return the man page of all commands, in the macros of man(7)."""
    root: Any = typer.main.get_command(cli.app)
    lines = [
        f'.\\" {_NOTE.format(source="sidecar/commands/cli.py").strip("<!-> ")}',
        *('.TH SIDECAR 1 "" "sidecar-evaluator" "User Commands"', ".nh", ".ad l"),
        *(".SH NAME", "sidecar \\- evaluate every checkpoint of a training job"),
        *(".SH SYNOPSIS", ".B sidecar", ".I COMMAND", "[OPTIONS]"),
        *(".SH DESCRIPTION", _roff(_sentence("sidecar", root.help)), ".SH COMMANDS"),
    ]
    for name, command in _commands(root):
        arguments = [_argument(each) for each in command.params if each.param_type_name == "argument"]
        lines += [f".SS {_roff(' '.join(['sidecar', name, *arguments]))}", _roff(_sentence(name, command.help))]
        for each in command.params:
            if getattr(each, "hidden", False) or each.name == "help":
                continue
            help_, default, variable = _help_of(name, each)
            given = [_value(each)] if each.param_type_name == "argument" else sorted(each.opts, key=len)
            value = [] if each.param_type_name == "argument" or not _value(each) else [_value(each)]
            more = ", ".join([*([f"default: {default}"] if default else []), *([variable] if variable else [])])
            shown = " ".join([", ".join(given), *value])
            lines += [".TP", f".B {_roff(shown)}", _roff(f"{help_} [{more}]" if more else help_)]
        commands = re.findall(r"^ *\$ (.*)$", command.epilog or "", re.MULTILINE)
        lines += [".PP", "Examples:", ".PP", ".nf", *(f"    {_roff(line)}" for line in commands), ".fi"]
    lines += [".SH EXIT STATUS"]
    for code, meaning in errors.EXIT_CODES.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    lines += [".SH FILES", ".TP", ".B sidecar.toml", "Settings, read from the current directory: see"]
    return _text([*lines, '.BR "sidecar settings" .'])


def _roff(text: str) -> str:
    """Return a text for man(7): signs that are commands there are escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and command of each command that is shown, those of groups such as `hooks test` as well."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


def parameters(name: str, command: Any) -> list[str]:
    """Return the rows of the table of a command's arguments and options."""
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    rows = []
    for each in shown:
        help_, default, variable = _help_of(name, each)
        is_argument = each.param_type_name == "argument"
        given = _code(_value(each)) if is_argument else ", ".join(map(_code, sorted(each.opts, key=len, reverse=True)))
        rows.append((given, "" if is_argument else _code(_value(each)), help_, default, _code(variable)))
    return _table(("Option", "Value", "Meaning", "Default", "Environment"), rows)


def _argument(parameter: Any) -> str:
    several = "..." if parameter.nargs < 0 else ""
    return f"{_value(parameter)}{several}" if parameter.required else f"[{_value(parameter)}{several}]"


def _value(parameter: Any) -> str:
    return str(parameter.name.upper() if parameter.metavar is None else parameter.metavar)


def _help_of(name: str, parameter: Any) -> tuple[str, str, str]:
    """Return help, default and variable of a parameter; `commands.options` writes the latter two into the help."""
    parts = re.fullmatch(r"(.*?\.)(?: \\\[(?:default: (.*); )?env: (\w+)\])?", parameter.help or "", re.DOTALL)
    if parts is None:
        raise MissingSentenceError(f"sidecar {name}: {parameter.name}: its help is not a sentence: {parameter.help!r}")
    default = parts[2] or ""
    if getattr(parameter, "show_default", False) and parameter.default is not None:
        default = str(parameter.default)
    return parts[1], default, parts[3] or ""


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics_page(shown: Sequence[FamilyFacts] | None = None) -> str:
    """Return the page of Prometheus families, all of them unless some are given."""
    lines = [
        *_head("Metrics", "sidecar/publishing/families.py"),
        "`/metrics` serves these families, and those of the Prometheus client about the daemon's own process",
        "(`process_*`). The `sidecar_eval_*` families come from one daemon of the run, the publisher. A family without",
        "samples is not shown.",
        "",
    ]
    rows = []
    for each in families() if shown is None else shown:
        if not each.help.endswith("."):
            raise MissingSentenceError(f"metric {each.name}: its help is not a sentence: {each.help!r}")
        rows.append((_code(each.name), each.type, ", ".join(map(_code, each.labels)), each.help))
    lines += _table(("Family", "Type", "Labels", "Meaning"), rows)
    lines += ["", "## Values of labels", ""]
    values = {
        "`state` of `sidecar_members`": tuple(states.NodeState),
        "`reason` of `sidecar_nodes_left_out`": get_args(Reason),
        "`kind` of `sidecar_plans_failed_total`": tuple(states.FailureKind),
        "`phase` of `sidecar_evaluation_phase_duration_seconds`": records.PHASES,
        "`step_source`": (*get_args(records.StepSource), "unknown"),
        "`goal` of `sidecar_eval_metric_info`": get_args(records.Value.__dataclass_fields__["goal"].type),
    }
    lines += _table(("Label", "Values"), [(label, ", ".join(map(_code, known))) for label, known in values.items()])
    return _text(lines)


# -- exit codes --------------------------------------------------------------------------------------------------------


def exit_codes_page() -> str:
    """Return the page of exit codes, with the errors that end in each."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SidecarError)]
    if unknown := {each.exit_code for each in kinds} - errors.EXIT_CODES.keys():
        raise MissingSentenceError(f"exit codes {unknown} have no sentence in sidecar.errors.EXIT_CODES")
    lines = [
        *_head("Exit codes", "sidecar/errors.py"),
        "A supervisor should start the daemon again after 4, after 70 and after a signal, and after no other code.",
        "",
        *_table(("Code", "Meaning"), [(str(code), meaning) for code, meaning in errors.EXIT_CODES.items()]),
        "",
        "## Errors",
        "",
        "Each error of the program has an exit code. An error that is retryable may pass by itself.",
        "",
    ]
    rows = [
        (_code(each.__name__), str(each.exit_code), "yes" if each.retryable else "no", _sentence("", each.__doc__))
        for each in sorted(kinds, key=lambda each: each.exit_code)
        if each is not errors.SidecarError
    ]
    return _text([*lines, *_table(("Error", "Code", "Retryable", "Meaning"), rows)])


# -- log events --------------------------------------------------------------------------------------------------------


def log_events_page(meanings: Mapping[str, str] = EVENTS) -> str:
    """Return the page of log events. `meanings`: a sentence for each."""
    lines = [
        *_head("Log events", "events.py and sentences.py in sidecar/publishing, and from the calls that write them"),
        'With `log_format = "json"` each line is an object with `event`, `level`, `timestamp` (UTC) and the fields',
        "below; `run` and `node` identify its source. On a terminal most events are the sentence below, where fields",
        "are in braces, and `--verbose` shows the event and its fields. Texts may change without notice.",
    ]
    found = log_events(PACKAGE)
    if odd := found.keys() ^ meanings.keys():
        raise MissingSentenceError(f"log events without a sentence in EVENTS, or without a call: {sorted(odd)}")
    for name, meaning in meanings.items():
        event = found[name]
        fields = ", ".join(map(_code, event.fields)) or "none"
        lines += ["", f"## `{name}`", "", meaning, "", f"- Level: {' or '.join(event.levels)}", f"- Fields: {fields}"]
        lines += [f"- On a terminal: {shown}"] if (shown := _on_a_terminal(name)) else []
    return _text(lines)


class _Field(str):
    """A field's name, which stands for its value in a sentence."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


class _AnyEvent(dict[str, Any]):
    """An event in which each text field holds its own name in braces; other fields have examples."""

    def __init__(self, name: str) -> None:
        super().__init__(event=name, attempt=1, workers=2, nodes=["{nodes}"], eval_sets=["{eval_sets}"])
        self.update({"evaluated": _Field("{evaluated}"), "best": ()})
        self.update({key: [f"{{{key}}}"] for key in _LISTS.get(name, ())})
        if name == "evaluation_succeeded":
            self.update({"test.accuracy": 0.987, "examples": {"test": 10000}, "took": 3.2, "lag": 5.4})
        if name == "plan_opened":
            self["attempt"] = 2

    def __missing__(self, key: str) -> _Field:
        return _Field(f"{{{key}}}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, even if an event may lack it."""
        return super().get(key, self[key] if default is None else default)


_LISTS: Final[Mapping[str, tuple[str, ...]]] = {"nonfinite_examples": ("found",), "no_runs_found": ("runs",)}
"""Fields that hold lists, by the event whose sentence joins them."""


def _on_a_terminal(name: str) -> str:
    text = sentence(_AnyEvent(name))
    if text is None:
        return "the event and its fields, with the traceback"
    return ", then ".join(f"`{line.strip()}`" for line in text.splitlines()) or "nothing, unless with `--verbose`"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def _head(title: str, source: str) -> list[str]:
    return [f"# {title}", "", _NOTE.format(source=source), ""]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _sentence(name: str, text: str | None) -> str:
    joined = " ".join((text or "").split())
    if not joined.endswith("."):
        raise MissingSentenceError(f"{name}: {joined!r} is not a sentence")
    return joined


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    used = [index for index, _ in enumerate(names) if any(row[index] for row in cells)]
    lines = [names, ["---"] * len(names), *cells]
    return [f"| {' | '.join(line[index] for index in used)} |" for line in lines]


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for page in sorted(FOLDER.parent.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
