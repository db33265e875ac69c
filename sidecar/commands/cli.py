"""Declare the commands and their options, and exit. No other module exits.

`commands.options` defines the options that are settings. Known errors end the program with one sentence and their exit
code; docs/reference/exit-codes.md lists the codes.
"""

import atexit
import contextlib
import errno
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from sidecar.commands.character_fallback import use_fallback
from sidecar.commands.load import settings_file, warn
from sidecar.commands.options import EvalSets, FromStep, Metrics, ToStep, examples, takes_settings
from sidecar.errors import SettingsError, SidecarError, StorageError
from sidecar.settings import load, load_shared
from sidecar.system.shortages import machine_shortage

_INTERRUPTED: Final = 130
_A_BUG: Final = 70
_FAILED: Final = 1
_OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_COMPLETE: Final = "_SIDECAR_COMPLETE"  # set by the shell's completion
# A ~/.zshrc without any other completion has not loaded the function that defines `compdef`.
_ZSH_BEGINS: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"

_NODE_OPTIONS: Final = ("task", "replicas", "min_workers", "port_range", "role", "node", "host", "http")
_RUN_OPTIONS: Final = (
    *_NODE_OPTIONS,
    *("log_format", "queue", "every_steps", "start", "stop_after_step", "stop_idle_seconds", "done_marker"),
    "state_backup",
)
_EVAL_OPTIONS: Final = ("task", "replicas", "port_range", "role", "node", "host")


def _switch(*names_and_help: str) -> Any:
    """Return an option without a value."""
    *names, text = names_and_help
    return typer.Option(*names, help=text, metavar="", show_default=False)


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Evaluate every checkpoint of a TensorFlow, Keras or PyTorch training job, while training keeps running.",
    epilog=examples(
        "sidecar init ckpts     # writes sidecar.toml and a task to fill in",
        "sidecar check          # finds problems before they cost time",
        "sidecar run            # evaluates what is there and what comes",
        "sidecar history        # lists the results",
    ),
)
hooks = typer.Typer(no_args_is_help=True, help="Try the commands and URLs that are called after a result.")
app.add_typer(hooks, name="hooks")


@hooks.callback()
def hooks_root() -> None:
    """Try the commands and URLs that are called after a result."""


@hooks.command(name="test", epilog=examples("sidecar hooks test", "sidecar hooks test ckpts best"))
@takes_settings(directory=False)
def hooks_test(
    flags: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [EVENT]",
            help="The directory of the checkpoints, and one of the hooks: result, best, failure, nan or end.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Send a sample event to each hook now, and print whether it was taken."""
    from sidecar.commands.hooks import directory_and_event, try_hooks
    from sidecar.commands.load import load_settings

    directory, event = directory_and_event(words or [])
    settings = load_settings(flags | {"checkpoint_dir": flags["checkpoint_dir"] or directory})
    raise typer.Exit(0 if try_hooks(settings, event) else _FAILED)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, _switch("--version", "-V", "Print the version.")] = False,
) -> None:
    """Print the version if `--version` is given."""
    if version:
        from sidecar.version import version as version_of_this_program

        typer.echo(f"sidecar-evaluator {version_of_this_program()}")
        raise typer.Exit


@app.command(epilog=examples("sidecar run ckpts -t my_eval.py:task", "sidecar run ckpts -t my_eval.py:task --once"))
@takes_settings(*_RUN_OPTIONS, no_wait=("--once", "Evaluate the checkpoints that exist, and end."))
def run(
    flags: dict[str, Any],
    verbose: Annotated[
        bool,
        _switch("--verbose", "-v", "Log every event with all of its fields."),
    ] = False,
) -> None:
    """Evaluate checkpoints as they appear, until stopped."""
    from sidecar.publishing.log import configure

    here, shared = settings_file(flags), load_shared(flags)
    settings = load(flags) if shared is None else shared.node
    configure(settings.log_format, verbose=verbose, several=shared is not None)
    from sidecar.commands.sinks import leave

    if shared is None:
        from sidecar.commands.serve import serve

        leave(settings, lambda: serve(settings, os.environ, settings_file=here.path))
    from sidecar.commands.many_runs import serve_many

    leave(settings, lambda: serve_many(shared, os.environ, settings_file=here.path))


@app.command(
    name="eval",
    epilog=examples("sidecar eval ckpts -t my_eval.py:task", "sidecar eval ckpts ckpt-5 -t my_eval.py:task -r 2"),
)
@takes_settings(*_EVAL_OPTIONS, directory=False)
def evaluate(
    flags: dict[str, Any],
    words: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR] [CHECKPOINT]",
            help="A checkpoint, by its name in DIR or by a path such as ckpts/ckpt-5; else the newest one in DIR.",
            show_default=False,
        ),
    ] = None,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Directory in which each worker saves a folder.", metavar="DIR", show_default=False),
    ] = None,
    as_json: Annotated[bool, _switch("--json", "Print the result as JSON.")] = False,
) -> None:
    """Evaluate one checkpoint now; nothing is written to the journal."""
    from sidecar.commands.evaluate import evaluate as evaluate_one
    from sidecar.commands.named_checkpoint import find_checkpoint
    from sidecar.commands.terminal import print_result

    typed = words or []
    if len(typed) > 2:  # noqa: PLR2004 - DIR and CHECKPOINT
        raise SettingsError(f"{' '.join(map(str, typed))}: one checkpoint at a time, as in `sidecar eval ckpts ckpt-5`")
    settings, path = find_checkpoint(flags, typed, warn)
    done = evaluate_one(settings, os.environ, path, save_dir=save_dir, warn=warn)
    if as_json:
        typer.echo(json.dumps(done.record(), indent=1, allow_nan=False))
    else:
        print_result(done.checkpoint, done.result, done.saves)


@app.command(
    epilog=examples(
        "sidecar history ckpts",
        "sidecar history ckpts --last 20",
        "sidecar history ckpts --plot --metric accuracy",
        "sidecar history ckpts --json",
        "sidecar history ckpts --set test --metric 'acc*' --from-step 1000",
    )
)
@takes_settings()
def history(
    flags: dict[str, Any],
    eval_sets: EvalSets = None,
    metrics: Metrics = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
    newest: Annotated[
        int | None, typer.Option("--last", min=1, help="Only the newest N of these results.", metavar="N")
    ] = None,
    as_plot: Annotated[bool, _switch("--plot", "Plot each metric over the training step.")] = False,
    as_csv: Annotated[bool, _switch("--csv", "Print a table with one row for each number, as export does.")] = False,
    as_json: Annotated[bool, _switch("--json", "Print a list of objects, oldest first.")] = False,
) -> None:
    """List all results of a run, oldest first."""
    from sidecar.commands.each_run import each_run, for_each
    from sidecar.commands.history import form_of, print_history_of
    from sidecar.publishing.history_filter import HistoryFilter

    wanted = HistoryFilter(eval_sets=eval_sets, metrics=metrics, first_step=from_step, last_step=to_step, newest=newest)
    form = form_of({"plot": as_plot, "csv": as_csv, "json": as_json})
    runs = each_run(flags, form="--csv" if as_csv else "--json" if as_json else None)

    def show(chosen: dict[str, Any]) -> bool:
        print_history_of(chosen, wanted, form)
        return True

    if not (show(flags) if runs is None else for_each(runs, show)):
        raise typer.Exit(_FAILED)


@app.command(
    epilog=examples(
        "sidecar export ckpts > results.csv",
        "sidecar export ckpts --format jsonl | jq .value",
        "sidecar export ckpts --format openmetrics > past.txt",
    )
)
@takes_settings()
def export(
    flags: dict[str, Any],
    form: Annotated[
        Literal["csv", "jsonl", "openmetrics"],
        typer.Option(
            "--format", help="A table, JSON lines, or OpenMetrics with the time of each result, for promtool."
        ),
    ] = "csv",
    eval_sets: EvalSets = None,
    metrics: Metrics = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
) -> None:
    """Print every number of every evaluation for other programs."""
    from sidecar.commands.history import print_export
    from sidecar.publishing.history_filter import HistoryFilter

    wanted = HistoryFilter(eval_sets=eval_sets, metrics=metrics, first_step=from_step, last_step=to_step)
    print_export(flags, wanted, form)


@app.command(
    epilog=examples("sidecar best ckpts", "sidecar best ckpts --json", "sidecar best ckpts --copy-to models/new"),
)
@takes_settings()
def best(
    flags: dict[str, Any],
    copy_to: Annotated[
        Path | None,
        typer.Option(help="Copy it to this new folder, and print its path there.", metavar="PATH", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is known of it.", metavar="", show_default=False)
    ] = False,
) -> None:
    """Print the path of the best checkpoint: its export (export_best), or where training saved it."""
    from sidecar.commands.best import print_best

    if copy_to is not None and not copy_to.name:
        raise SettingsError(f"--copy-to {copy_to}: write the path of a new folder")
    print_best(flags, as_json=as_json, copy_to=copy_to)


@app.command(
    epilog=examples("sidecar compare ckpts best newest", "sidecar compare ckpts ckpt-5 ckpt-7 --csv > changed.csv"),
)
@takes_settings(directory=False)
def compare(
    flags: dict[str, Any],
    evaluations: Annotated[
        list[str],
        typer.Argument(
            metavar="[DIR] A B",
            help="The directory, and two evaluated checkpoints: their names or steps, best, or newest.",
            show_default=False,
        ),
    ],
    as_csv: Annotated[bool, _switch("--csv", "Print every example that only one of both answers right.")] = False,
) -> None:
    """Tell in what checkpoint B differs from checkpoint A, with intervals, and which examples changed."""
    from sidecar.commands.compare import print_comparison

    print_comparison(flags, evaluations, as_csv=as_csv)


@app.command(epilog=examples("sidecar page ckpts", "sidecar page exp-*/ckpts --http 127.0.0.1:8080"))
@takes_settings(directory=False)
def page(
    flags: dict[str, Any],
    directories: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR]…", help="Directories of checkpoints, each of one run.", show_default=False),
    ] = None,
) -> None:
    """Serve the status page of one or more runs, also of finished ones, until Ctrl-C.

    This command reads only shared storage, and needs no daemon. It listens on a free port of this machine, unless
    `--http HOST:PORT` names another.
    """
    from sidecar.commands.page import serve_page

    serve_page(flags, directories or [], until=signal.pause)


@app.command(epilog=examples("sidecar status ckpts", "sidecar status ckpts --watch"))
@takes_settings(no_wait=("--no-observe", "Do not observe who is alive: heartbeats take up to 5 s."))
def status(
    flags: dict[str, Any],
    as_json: Annotated[bool, _switch("--json", "Print an object; with --watch one per line.")] = False,
    watch: Annotated[bool, _switch("--watch", "-w", "Keep the terminal up to date until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two scans with --watch.", metavar="S")] = 2.0,
) -> None:
    """Show the newest and the best result, nodes, queue and progress.

    This command reads only shared storage, so it works on any node, and also while every daemon is down.
    """
    from sidecar.commands.each_run import each_run, print_statuses
    from sidecar.commands.status.collect import OBSERVED_BEATS
    from sidecar.commands.status.command import print_again, print_once
    from sidecar.commands.status.observe import observer_of

    if (runs := each_run(flags, form="--watch" if watch else None)) is not None:
        print_statuses(runs, as_objects=as_json)
        return
    settings, storage_timeout, observer = observer_of(flags)
    if watch:
        try:
            print_again(
                settings.run, observer, storage_timeout, every_seconds=every, pause=time.sleep, json_lines=as_json
            )
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
    seconds = 0.0 if flags["wait"] is False else OBSERVED_BEATS * settings.beat_seconds
    print_once(settings.run, observer, storage_timeout, seconds=seconds, pause=time.sleep, json_lines=as_json)


@app.command(
    epilog=examples("sidecar check ckpts -t my_eval.py:task", "sidecar check ckpts -t my_eval.py:task --quick")
)
@takes_settings(*_NODE_OPTIONS)
def check(
    flags: dict[str, Any],
    quick: Annotated[
        bool, _switch("--quick", "Only import the task: restore no checkpoint, evaluate no batch.")
    ] = False,
    as_json: Annotated[bool, _switch("--json", "Print an object with all findings.")] = False,
) -> None:
    """Check this machine's setup, evaluate a batch with the newest checkpoint, and report problems."""
    from sidecar.commands.check.report import check as check_setup
    from sidecar.commands.each_run import each_run, for_each

    runs = each_run(flags, form="--json" if as_json else None)
    if runs is None:
        is_ok = check_setup(flags, quick=quick, as_json=as_json)
    else:
        is_ok = for_each(runs, lambda chosen: check_setup(chosen, quick=quick, as_json=False))
    raise typer.Exit(0 if is_ok else _FAILED)


@app.command(
    epilog=examples(
        "sidecar requeue ckpts ckpt-5 ckpt-7",
        "sidecar requeue ckpts --all-failed",
        "sidecar requeue ckpts --again --all",
    )
)
@takes_settings("node", directory=False, no_wait=("--no-wait", "Do not wait for the end of a running evaluation."))
def requeue(
    flags: dict[str, Any],
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] CHECKPOINT",
            help="The directory, and checkpoints in it that came to an end; or their paths, such as ckpts/ckpt-5.",
            show_default=False,
        ),
    ] = None,
    all_failed: Annotated[bool, _switch("--all-failed", "All checkpoints that failed for good.")] = False,
    again: Annotated[
        bool,
        _switch("--again", "Also evaluated checkpoints: measure them again."),
    ] = False,
    all_evaluated: Annotated[
        bool,
        _switch("--all", "With --again: all evaluated checkpoints that exist."),
    ] = False,
    dry_run: Annotated[
        bool,
        _switch("--dry-run", "Print the checkpoints that would be requeued."),
    ] = False,
    wait_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the end of a running evaluation.", metavar="S")
    ] = 300.0,
) -> None:
    """Evaluate checkpoints again that failed, vanished, were corrupt or skipped; with --again, any."""
    from sidecar.commands.requeue import Request, requeue_typed

    typed = Request(tuple(checkpoints or ()), all_failed=all_failed, again=again, all_evaluated=all_evaluated)
    requeue_typed(flags, typed, dry_run=dry_run, wait_seconds=wait_seconds)


@app.command(epilog=examples("sidecar compact ckpts --dry-run", "sidecar compact ckpts"))
@takes_settings()
def compact(
    flags: dict[str, Any],
    dry_run: Annotated[bool, _switch("--dry-run", "Say what would be done, and change nothing.")] = False,
) -> None:
    """Move old plans of the journal into a few compressed files, which daemons do little by little.

    This is safe while daemons run, on any node, and can be interrupted. DIR may also be the state directory of a run.
    """
    from sidecar.commands.compact import compact as compact_journal

    compact_journal(flags, dry_run=dry_run)


@app.command(
    name="restore-state",
    epilog=examples(
        "sidecar restore-state ckpts --state-backup s3://bucket/backups",
        "sidecar restore-state ckpts && sidecar run ckpts",
    ),
)
@takes_settings("state_backup", "node")
def restore_state(flags: dict[str, Any]) -> None:
    """Make the state directory of a run anew from its backup, to continue the run on this machine.

    The daemon that has sent the backup then sends nothing more. If there is a run already, or no backup, nothing is
    done, so the command may come before `sidecar run` in a script.
    """
    from sidecar.commands.restore_state import restore_state as restore

    restore(flags, os.environ)


@app.command(epilog=examples("sidecar init", "sidecar init ckpts", "sidecar init ckpts --framework torch"))
def init(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Directory that training saves its checkpoints in; else it is searched.",
            show_default=False,
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="What trains, such as torch; else the checkpoints tell, or the Python files here.", show_default=False
        ),
    ] = None,
) -> None:
    """Write sidecar.toml and a task to fill in, from what is found here."""
    from sidecar.commands.init import propose, write

    here = Path.cwd()
    write(here, propose(here, None if directory is None else directory.absolute(), framework), typer.echo)


@app.command(epilog=examples("sidecar settings", "sidecar settings replicas", "sidecar settings gpu"))
def settings(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A setting, or a part of its name.", show_default=False)
    ] = None,
) -> None:
    """List all settings by topic, or show one: what it means, its default, and the line to write."""
    from sidecar.commands.settings import settings_text

    typer.echo("\n".join(settings_text(name)))


@app.command(hidden=True, name="help")
def help_(command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND")] = None) -> None:
    """Show the help of a command, as its option `--help` does."""
    app([*(command or []), "--help"])


@app.command(hidden=True)
def version() -> None:
    """Print the version, as the option `--version` does."""
    app(["--version"])


@app.command(
    epilog=examples(
        "sidecar completion bash > ~/.local/share/bash-completion/completions/sidecar",
        "sidecar completion zsh >> ~/.zshrc",
        "sidecar completion fish > ~/.config/fish/completions/sidecar.fish",
    )
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Shell to complete commands in.")],
) -> None:
    """Print the script that completes commands and options in your shell."""
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="sidecar", complete_var=_COMPLETE, shell=shell)
    if shell == "zsh":
        first, rest = script.split("\n", 1)
        script = f"{first}\n{_ZSH_BEGINS}\n{rest}"
    typer.echo(script)


@app.command(epilog=examples("sidecar demo", "sidecar demo --keep"))
def demo(
    directory: Annotated[
        Path, typer.Option(help="Folder of the demo; an earlier demo is replaced.", metavar="DIR")
    ] = Path("sidecar-demo"),
    keep: Annotated[
        bool,
        _switch("--keep", "Leave the daemons serving until Ctrl-C."),
    ] = False,
    framework: Annotated[
        Literal["tensorflow", "torch", "lm"],
        typer.Option(help="What is trained: digits with TensorFlow or PyTorch, or a language model."),
    ] = "tensorflow",
    checkpoints: Annotated[int, typer.Option(min=1, hidden=True)] = 8,
) -> None:
    """Watch it work on a small example: about two minutes."""
    from sidecar.commands.demo.frameworks import FRAMEWORKS
    from sidecar.commands.demo.run import run as run_demo

    raise typer.Exit(run_demo(directory, keep=keep, checkpoints=checkpoints, framework=FRAMEWORKS[framework]))


def main() -> None:
    """Run a command, and exit with its code."""
    try:
        run_command()
    except SystemExit as ended:
        if "obstore" not in sys.modules:
            raise
        # Its threads outlive the interpreter, and one that then asks for it aborts the process: skip that last part.
        atexit._run_exitfuncs()  # noqa: SLF001 - what else is to be done at the end of a process
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def run_command() -> None:
    """Run a command, and raise `SystemExit` with its code."""
    use_fallback((sys.stdout, sys.stderr))
    try:
        if _COMPLETE in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        try:
            app()  # ends in SystemExit; for invalid options Typer prints a message and exits with code 2
        finally:
            _flush_output()
    except KeyboardInterrupt:  # before or after the command
        code = _INTERRUPTED
    except SidecarError as error:
        warn(str(error))
        code = error.exit_code
    except PermissionError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "what is needed"
        who = f"the user with id {os.geteuid()}"
        warn(f"{where} cannot be reached: {who} has no right to it, or above it")
        code = StorageError.exit_code
    except Exception as error:  # noqa: BLE001 - any other exception is a bug of this program, and is reported as such
        code = _unexpected(error)
    sys.exit(code)


def _unexpected(error: Exception) -> int:
    """Say what the machine lacks, or report a bug of this program with its traceback; return the exit code."""
    if (lacking := machine_shortage(error)) is not None:
        warn(str(lacking))
        return lacking.exit_code
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        warn(f"standard output cannot be written: {error.strerror}; it is not whole")
        return StorageError.exit_code
    traceback.print_exc()
    typer.echo("sidecar: this is a bug in sidecar-evaluator; please report it with the lines above", err=True)
    return _A_BUG


def _flush_output() -> None:
    """Write what standard output still holds: at the end of the interpreter an error would be a line of Python's own.

    Raises the `OSError`. What could not be written is given up then.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        raise
