"""The command line: composition root, and the only place that exits.

Every command takes the same options for settings (`config.FLAGS`). Errors that we know end in one sentence and their
exit code; see the README for the codes.
"""

import inspect
import json
import os
import queue
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sidecar.config import CONFIG, FLAGS, load
from sidecar.errors import SettingsError, SidecarError
from sidecar.version import __version__

if TYPE_CHECKING:
    from sidecar.commands.patience import Patience
    from sidecar.commands.standing import Onlooker
    from sidecar.config import Settings

_INTERRUPTED: Final = 130
_A_BUG: Final = 70
_HIDES_HINTS: Final = ("NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST")  # why a daemon without a hint refuses to start

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Evaluates every training checkpoint beside the job: distributed, exact, nothing lost.",
)

_OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "config": (Path, "TOML file with any of the settings."),
    "checkpoint_dir": (Path, "Directory that training saves its checkpoints in."),
    "state_dir": (Path, "Directory that the daemons of all nodes share. Default: CHECKPOINT_DIR/.sidecar."),
    "run": (str, "Name of the training run. Default: the checkpoint directory's."),
    "task": (str, "What to evaluate with: path/file.py:attr or module:attr."),
    "node": (str, "Name of this node. Default: its task in TF_CONFIG, else the host name."),
    "role": (str, "worker or chief: whether this node may evaluate. Default: found out."),
    "host": (str, "Address at which other nodes reach this one."),
    "port_range": (str, "Ports for worker processes, FIRST-LAST."),
    "replicas": (int, "Worker processes on this node."),
    "min_workers": (int, "The smallest group that evaluates."),
    "http": (str, "HOST:PORT of /metrics and the status page; port 0 takes a free one."),
    "queue": (str, "every or latest: which of several waiting checkpoints are evaluated."),
    "every_steps": (int, "Evaluate the first checkpoint of every so many steps only."),
    "start": (str, "all or new: whether checkpoints that are there at the start count."),
    "stop_after_step": (int, "End once a checkpoint of this step is evaluated."),
    "stop_idle_seconds": (float, "End after so long without anything to do."),
    "done_marker": (str, "End when training put a file of this name beside its checkpoints, and all are evaluated."),
    "log_format": (str, "console or json. Default: console on a terminal, json elsewhere."),
}
_SWITCHES: Final = {"wait": ("--no-wait", "Do not wait: `run` evaluates what is there and ends.")}


def _takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `_OPTIONS`; it is called with those that were given, as `flags`."""
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "flags"]
    names = {field: flag for flag, field in FLAGS.items()} | {CONFIG: "--config"}

    @wraps(command)
    def with_flags(**arguments: Any) -> None:
        flags = {name: arguments.pop(name) for name in _OPTIONS}
        flags |= {name: False if arguments.pop(name) else None for name in _SWITCHES}
        command(**arguments, flags=flags)

    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, typer.Option(names[name], help=text, show_default=False)],
        )
        for name, (kind, text) in _OPTIONS.items()
    ]
    switches = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, typer.Option(flag, help=text)],
        )
        for name, (flag, text) in _SWITCHES.items()
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + options + switches
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    """Print the version, if that is asked."""
    if version:
        typer.echo(f"sidecar-evaluator {__version__}")
        raise typer.Exit


@app.command()
@_takes_settings
def run(flags: dict[str, Any]) -> None:
    """Watch a checkpoint directory and evaluate what appears in it, until stopped."""
    from sidecar.observers.log import configure

    settings = load(flags)
    configure(settings.log_format)
    from sidecar.commands.compose import serve

    raise typer.Exit(serve(settings, os.environ))


@app.command(name="eval")
@_takes_settings
def evaluate(
    checkpoint: Annotated[
        Path, typer.Argument(help="The checkpoint: a file, a SavedModel's folder, or a prefix such as ckpts/ckpt-5.")
    ],
    flags: dict[str, Any],
    save_dir: Annotated[Path | None, typer.Option(help="Where workers save; one folder each.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Evaluate one checkpoint, once, here; nothing is written to the journal."""
    from sidecar.checkpoints.single import check, inspect_one
    from sidecar.commands.compose import make_join, make_workers
    from sidecar.commands.once import Inbox, Once, evaluate_once, result_of
    from sidecar.commands.show import print_result, shown_progress
    from sidecar.roles import decide_role, node_name

    path = checkpoint.absolute()
    path = path.with_suffix("") if path.suffix == ".index" else path
    settings = load(flags | {"checkpoint_dir": flags["checkpoint_dir"] or path.parent})
    settings.require_task()
    node = node_name(settings, os.environ)
    # Whoever asks once sees the job's environment, so nothing is hidden from it: every hint holds, and none is no hint.
    told = {name: value for name, value in os.environ.items() if name not in _HIDES_HINTS}
    decision = decide_role(settings, node, told)
    if decision.role == "chief":
        raise SettingsError(f"node {node!r} is the chief ({decision.source}), which never evaluates: {decision.remedy}")
    found = inspect_one(path, step_key=settings.step_key, step_pattern=settings.step_pattern)
    if settings.verify == "full":
        check(path, found.format)
    inbox: Inbox = queue.SimpleQueue()
    incarnation = secrets.token_hex(4)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    save_to = save_dir or settings.run_dir / "evaluations" / found.folder / f"eval-{moment}-{incarnation}"
    once = Once(
        make_join(settings),
        found,
        str(path),
        save_to.absolute(),
        settings.plan_cap_seconds,
        settings.save_weights,
        (save_dir or settings.run_dir).absolute(),
    )
    workers = make_workers(settings, os.environ, f"{node}.{incarnation}", lambda *report: inbox.put(report), warn=_warn)
    with shown_progress() as show:
        done = evaluate_once(once, workers, inbox, show=show)
    print_result(found, result_of(done), save_to.absolute(), as_json=as_json)


@app.command()
@_takes_settings
def history(
    flags: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects, oldest first.")] = False,
) -> None:
    """Print every evaluation and every settled checkpoint of a run, oldest first."""
    from sidecar.agreement.journal import read_history
    from sidecar.commands.show import print_history
    from sidecar.observers.report import rows, table

    settings, patience, onlooker = _look_on(flags)
    found = patience.ask(lambda: read_history(onlooker.storage))
    if as_json:
        typer.echo(json.dumps(rows(found), indent=1, allow_nan=False))
    elif found.entries:
        print_history(table(found), rows(found))
    else:
        typer.echo(
            f"run {settings.run}: nothing has been evaluated or settled yet; `sidecar status` shows who is there"
        )


@app.command()
@_takes_settings
def status(
    flags: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print an object; with --watch one per line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
) -> None:
    """Show who is there and what is going on, from shared storage alone.

    It looks for a little longer than two heartbeats who still beats; --no-wait leaves that out.
    """
    from sidecar.commands.look import print_again, print_once
    from sidecar.commands.standing import LOOK_BEATS

    settings, patience, onlooker = _look_on(flags)
    if watch:
        try:
            print_again(settings.run, onlooker, patience, every_seconds=every, pause=time.sleep, json_lines=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
    seconds = 0.0 if flags["wait"] is False else LOOK_BEATS * settings.beat_seconds
    print_once(settings.run, onlooker, patience, seconds=seconds, pause=time.sleep, json_lines=as_json)


@app.command()
@_takes_settings
def check(flags: dict[str, Any]) -> None:
    """Try everything that the daemon needs here, and say what would happen."""
    from rich.console import Console
    from rich.text import Text

    from sidecar.commands.check import findings
    from sidecar.commands.compose import make_catalog, make_workers
    from sidecar.commands.show import printable

    settings, patience = _ask(flags)
    console, failed = Console(), 0
    name = f"check.{secrets.token_hex(4)}"
    trials = findings(
        settings,
        os.environ,
        catalog=make_catalog(settings, once=True, looked=patience.heard),
        patience=patience,
        make_workers=lambda post: make_workers(settings, os.environ, name, post, warn=_warn),
        search_path=str(Path.cwd()),
    )
    for found in trials:
        mark = Text("ok  ", "green") if found.ok else Text("FAIL", "red")
        console.print(mark, Text(printable(f"{found.what:<12}{found.text}")), soft_wrap=True)
        failed += not found.ok
    raise typer.Exit(2 if failed else 0)


@app.command()
@_takes_settings
def requeue(
    flags: dict[str, Any],
    checkpoints: Annotated[
        list[str] | None, typer.Argument(help="Names of checkpoints that were given up, such as ckpt-5.")
    ] = None,
    all_failed: Annotated[bool, typer.Option("--all-failed", help="All that failed for good.")] = False,
    wait_seconds: Annotated[float, typer.Option(min=0, help="Wait so long for the end of an open plan.")] = 300.0,
) -> None:
    """Let checkpoints that failed, vanished, were corrupt or skipped be tried again; --no-wait waits for nothing."""
    from sidecar.commands.requeue import Wanted, what_next
    from sidecar.commands.requeue import requeue as reopen
    from sidecar.commands.show import printable
    from sidecar.commands.standing import LOOK_BEATS, meet
    from sidecar.roles import node_name

    if not checkpoints and not all_failed:
        raise SettingsError("nothing is named: give names of checkpoints, such as ckpt-5, or --all-failed")
    settings, patience, onlooker = _look_on(flags)
    waits = flags["wait"] is not False
    reopened = patience.ask(
        lambda: reopen(
            onlooker.storage,
            onlooker.catalog,
            Wanted(checkpoints or (), all_failed=all_failed),
            by=node_name(settings, os.environ),
            clock=onlooker.clock,
            wait_seconds=wait_seconds if waits else 0.0,
            pause=time.sleep,
            tell=lambda sentence: typer.echo(printable(sentence), err=True),
        )
    )
    for each in reopened:
        typer.echo(printable(f"{each.name} is requeued ({each.reason})"))
    if reopened and waits:
        patience.ask(lambda: meet(onlooker, LOOK_BEATS * settings.beat_seconds, time.sleep))
        typer.echo(printable(what_next(patience.ask(onlooker.look))))


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="Where; an earlier demo's folder is replaced.")] = Path(
        "sidecar-demo"
    ),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the daemons serving until Ctrl-C.")] = False,
    checkpoints: Annotated[int, typer.Option(min=1, hidden=True)] = 8,
) -> None:
    """Train on real handwritten digits here, and watch every checkpoint being evaluated beside it."""
    from sidecar.demo.run import run as run_demo

    raise typer.Exit(run_demo(directory, keep=keep, checkpoints=checkpoints))


def _ask(flags: dict[str, Any]) -> "tuple[Settings, Patience]":
    """Read the settings, and who asks storage for them: looking at the directories may hang, too."""
    from sidecar.commands.patience import Patience
    from sidecar.config import Settings

    seconds = Settings.model_fields["storage_timeout_seconds"].default
    settings = Patience(seconds, str(flags["checkpoint_dir"] or "the checkpoint directory")).ask(lambda: load(flags))
    return settings, Patience(settings.storage_timeout_seconds, str(settings.run_dir))


def _look_on(flags: dict[str, Any]) -> "tuple[Settings, Patience, Onlooker]":
    """Who looks at a run from outside."""
    from sidecar.agreement.storage import PosixStorage
    from sidecar.clock import SystemClock
    from sidecar.commands.compose import make_catalog, make_rules
    from sidecar.commands.patience import HeardStorage
    from sidecar.commands.standing import Onlooker, check_place, file_times, runs_in

    settings, patience = _ask(flags)
    patience.ask(lambda: check_place(settings.checkpoint_dir, settings.run_dir))
    onlooker = Onlooker(
        HeardStorage(PosixStorage(settings.run_dir), patience.heard),
        make_catalog(settings, once=True, looked=patience.heard),
        SystemClock(),
        lease_seconds=settings.lease_seconds,
        written_at=file_times(settings.run_dir),
        runs=runs_in(settings.state_dir),
        selection=make_rules(settings).selection,
        min_workers=settings.min_workers,
    )
    return settings, patience, onlooker


def _warn(sentence: str) -> None:
    from sidecar.commands.show import printable

    typer.echo(printable(f"sidecar: {sentence}"), err=True)


def main() -> None:
    """Entry point: run a command, and exit with its code."""
    try:
        app()  # ends in SystemExit; Typer tells what is wrong with the options, with code 2
    except KeyboardInterrupt:  # before or after the command
        code = _INTERRUPTED
    except SidecarError as error:
        from sidecar.commands.show import printable

        typer.echo(printable(f"sidecar: {error}"), err=True)
        code = error.exit_code
    except Exception:  # noqa: BLE001 - the last resort: our bug, said as such
        traceback.print_exc()
        typer.echo("sidecar: this is a bug in sidecar-evaluator; please report it with the lines above", err=True)
        code = _A_BUG
    sys.exit(code)
