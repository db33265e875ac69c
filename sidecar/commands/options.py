"""Give commands their options from one table of the options that set settings.

Every command accepts every option of the table, so that scripts can pass the same ones to all. Its help shows only
those that matter to it.
"""

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sidecar.errors import SettingsError
from sidecar.settings import CONFIG, Settings, option, variable

WHERE: Final = ("checkpoint_dir", "config", "state_dir", "run")
"""Settings that every command needs to find the run."""

_NO_WAIT: Final = "--no-wait"
_LIMITS: Final = "Which checkpoints, and when to end"
_NODE: Final = "This node"
_WORKERS: Final = "Worker processes"


@dataclass(frozen=True, slots=True)
class Option:
    """Describe the option of a setting: type, placeholder, help text, short name, and group in the help."""

    kind: type
    value: str
    text: str
    _: KW_ONLY
    short: str | None = None
    panel: str | None = None
    default: str | None = None  # shown if the setting's own default says nothing


EvalSets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Only this eval set, or those that match; may be repeated.", metavar="GLOB"),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help="Only this metric, or those that match; may be repeated.", metavar="GLOB"),
]
FromStep = Annotated[int | None, typer.Option(help="Only checkpoints from this training step on.", metavar="STEP")]
ToStep = Annotated[int | None, typer.Option(help="Only checkpoints up to this training step.", metavar="STEP")]

OPTIONS: Final[dict[str, Option]] = {
    "checkpoint_dir": Option(Path, "DIR", "Directory that training saves its checkpoints in.", short="-d"),
    "config": Option(
        Path, "FILE", "TOML file with any of the settings.", short="-c", default="./sidecar.toml, if there"
    ),
    "state_dir": Option(Path, "DIR", "Directory that the daemons of all nodes share.", default="DIR/.sidecar"),
    "state_backup": Option(str, "URL", "Bucket's folder that keeps a copy of the state directory."),
    "run": Option(str, "NAME", "Name of the training run.", default="the name of DIR"),
    "task": Option(str, "TASK", "Task to evaluate with: path/file.py:attr or module:attr.", short="-t"),
    "replicas": Option(int, "N", "Worker processes on this node.", short="-r", panel=_WORKERS),
    "min_workers": Option(int, "N", "The smallest group that evaluates.", panel=_WORKERS),
    "port_range": Option(str, "A-B", "Ports for worker processes.", panel=_WORKERS),
    "role": Option(
        str, "ROLE", "worker or chief: whether this node may evaluate.", panel=_NODE, default="as the job says"
    ),
    "node": Option(
        str,
        "NAME",
        "Name of this node.",
        panel=_NODE,
        default="its task in TF_CONFIG, else its name in Slurm, else the host name",
    ),
    "host": Option(str, "HOST", "Address at which other nodes reach this one.", panel=_NODE, default="this machine's"),
    "http": Option(str, "HOST:PORT", "Address of /metrics and the status page; port 0 takes a free one.", panel=_NODE),
    "log_format": Option(
        str, "FORMAT", "console or json.", panel=_NODE, default="console on a terminal, json elsewhere"
    ),
    "queue": Option(str, "QUEUE", "every or latest: which waiting checkpoints are evaluated.", panel=_LIMITS),
    "every_steps": Option(
        int, "N", "Evaluate the first checkpoint of every N steps only.", panel=_LIMITS, default="all"
    ),
    "start": Option(str, "START", "all or new: whether checkpoints from before the start count.", panel=_LIMITS),
    "stop_after_step": Option(int, "N", "End once a checkpoint of this step is evaluated.", panel=_LIMITS),
    "stop_idle_seconds": Option(float, "S", "End after this time without any work.", panel=_LIMITS),
    "done_marker": Option(str, "NAME", "End once a file of this name lies next to the checkpoints.", panel=_LIMITS),
}

FLAGS: Final = {option(key): key for key in (*OPTIONS, "wait") if key != CONFIG}
"""Options that scripts rely on, and the settings they give, in addition to `--config`. Other settings have none."""

_DIRECTORY: Final = inspect.Parameter(
    "directory",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Directory that training saves its checkpoints in.", show_default=False),
    ],
)


def takes_settings(
    *shown: str, directory: bool = True, no_wait: tuple[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `OPTIONS`, and call it with the given ones as `flags`.

    `shown`: settings whose options the command's help shows. `directory`: whether it takes the checkpoint directory as
    its argument, too. `no_wait`: name and help of the option that shortens this command's wait: `flags["wait"]` is then
    False.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(command).parameters.values()
        others = [parameter for parameter in declared if parameter.name != "flags"]

        @wraps(command)
        def with_flags(**arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in OPTIONS}
            less = [arguments.pop(name, False) for name in ("wait_for_less", "no_wait")]
            flags["wait"] = False if any(less) else None
            if directory:
                flags["checkpoint_dir"] = _one_directory(arguments.pop("directory"), flags["checkpoint_dir"])
            command(**arguments, flags=flags)

        parameters = [_DIRECTORY] if directory else []
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in others]
        parameters += [_parameter(name, hidden=name not in (*WHERE, *shown)) for name in OPTIONS]
        parameters += _switches(no_wait)
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate


def examples(*lines: str) -> str:
    """Return the end of a command's help: examples, and the command that lists all settings."""
    text = "\n".join(["Examples:", *(f"  $ {line}" for line in lines), "All settings: sidecar settings"])
    return f"\b\n{text}"  # \b: line ends stay as they are


@cache  # one for all commands: a daemon keeps what every command declares
def _parameter(name: str, *, hidden: bool) -> inspect.Parameter:
    shape = OPTIONS[name]
    names = [option(name), *([shape.short] if shape.short and not hidden else [])]
    help_ = f"{shape.text} {_origins(name, shape)}"
    info = typer.Option(
        *names, help=help_, metavar=shape.value, show_default=False, hidden=hidden, rich_help_panel=shape.panel
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[shape.kind | None, info]
    )


def _origins(name: str, shape: Option) -> str:
    """Return default and variable for the help. The bracket is escaped, because it would be markup."""
    default = shape.default
    if default is None and name in Settings.model_fields and name != "checkpoint_dir":
        default = Settings.model_fields[name].default
    origins = ([] if default is None else [f"default: {default}"]) + [f"env: {variable(name)}"]
    return rf"\[{'; '.join(origins)}]"


def _switches(no_wait: tuple[str, str] | None) -> list[inspect.Parameter]:
    """Return the command's own option for a shorter wait, and `--no-wait`, which all commands accept."""
    flag, text = no_wait or (_NO_WAIT, "")
    options = {"wait_for_less": typer.Option(flag, help=text, metavar="", show_default=False, hidden=no_wait is None)}
    if flag != _NO_WAIT:
        options["no_wait"] = typer.Option(_NO_WAIT, hidden=True)
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])
        for name, info in options.items()
    ]


def _one_directory(argument: Path | None, option: Path | None) -> Path | None:
    if argument is not None and option is not None and argument.absolute() != option.absolute():
        raise SettingsError(
            f"the checkpoint directory is given twice: {str(argument)!r} as an argument and {str(option)!r} by "
            "--checkpoint-dir; leave one out"
        )
    return option if argument is None else argument
