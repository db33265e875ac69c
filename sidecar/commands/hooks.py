"""Make the hooks that the settings ask for, and send a sample event to each of them for `sidecar hooks test`."""

import base64
import binascii
import difflib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import typer

from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.commands.state_storage import state_storage
from sidecar.coordination.totals import Best
from sidecar.errors import SettingsError, SidecarError
from sidecar.protocol.records import Checkpoint, Nonfinite, Result, Value
from sidecar.publishing.sinks.best_so_far import BestSoFar, ExceedsNoise
from sidecar.publishing.sinks.chat_message import chat_form
from sidecar.publishing.sinks.hook import HOOKS, Hook, Target
from sidecar.publishing.sinks.hook_command import HookCommand
from sidecar.publishing.sinks.hook_event import HookName, event_id, event_json
from sidecar.publishing.sinks.sink import Evaluation, Event, Failure, RunEnd
from sidecar.settings import Settings
from sidecar.settings.hook_values import HookSetting
from sidecar.system.plain_text import printable

_SECRET_BYTES: Final = (24, 64)  # the least and the most, as Standard Webhooks says
_MOST_SECRET_FILE_BYTES: Final = 4096
_PREFIX: Final = "whsec_"


def make_hooks(settings: Settings) -> Iterator[Hook]:
    """Yield the hooks of the settings. Raises `SettingsError` if one cannot be called as they say."""
    exceeds_noise = make_noise_rule(settings)
    for hook, setting in _by_name(settings):
        yield Hook(
            hook=hook,
            target=make_target(hook, setting),
            run_dir=settings.run_dir,
            deadline_seconds=setting.deadline_seconds,
            best=BestSoFar(metric=settings.best_metric, exceeds_noise=exceeds_noise),
        )


def _by_name(settings: Settings) -> list[tuple[HookName, HookSetting]]:
    return [(hook, settings.hooks[hook]) for hook in HOOKS if hook in settings.hooks]


def make_noise_rule(settings: Settings) -> ExceedsNoise | None:
    """Return what must hold in addition for a new best evaluation by `best_metric`; None if `best_by` is `value`."""
    if settings.best_by != "significant":
        return None
    from sidecar.publishing.sinks.recorded_comparisons import RecordedComparisons  # noqa: PLC0415 - most daemons compare nothing

    return RecordedComparisons(state_storage(settings), settings.run_dir)


def make_target(hook: HookName, setting: HookSetting) -> Target:
    """Return the command or the URL of a hook. Raises `SettingsError` if a program or a file is missing."""
    if setting.command is not None:
        if shutil.which(setting.command[0]) is None:
            raise SettingsError(
                f"hook {hook}: there is no program {setting.command[0]!r} that this user may run: write its whole path"
            )
        return HookCommand(setting.command, setting.timeout_seconds)
    from sidecar.publishing.sinks.webhook import Webhook  # noqa: PLC0415 - urllib and TLS take 3 MB

    assert setting.url is not None  # one of both is there
    secret = None if setting.secret_file is None else read_secret(hook, setting.secret_file)
    form = setting.form or chat_form(setting.url)
    return Webhook(setting.url, secret, setting.timeout_seconds, setting.authorization_file, form)


def read_secret(hook: HookName, path: Path) -> bytes:
    """Return the key in a file: `whsec_` and 24 to 64 bytes in Base64, as Standard Webhooks says.

    Raises `SettingsError` if the file cannot be read, other users can read it, or it does not hold a key.
    """
    where = f"hook {hook}: secret_file {str(path)!r}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _reject_readable(where, path, status)
            text = file.read(_MOST_SECRET_FILE_BYTES).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{where} does not hold a key: {_how(path)}") from error
    except OSError as error:
        raise SettingsError(f"{where} cannot be read: {error.strerror}: {_how(path)}") from error
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise SettingsError(f"{where} does not hold a key: {_how(path)}") from error
    least, most = _SECRET_BYTES
    if not least <= len(key) <= most:
        raise SettingsError(f"{where} holds a key of {len(key)} bytes, not {least} to {most}: {_how(path)}")
    return key


def _reject_readable(where: str, path: Path, status: os.stat_result) -> None:
    """Raise if other users can read the key. A file of root, such as a Secret of Kubernetes, may be the group's."""
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"{where} is not a regular file: {_how(path)}")
    group = stat.S_IRWXG if status.st_uid == os.geteuid() else stat.S_IWGRP
    if status.st_mode & (stat.S_IRWXO | group):
        raise SettingsError(f"{where} can be read or changed by other users: make it yours alone, `chmod 600 {path}`")


def _how(path: Path) -> str:
    return f'write one with `(umask 077; echo "whsec_$(head -c 32 /dev/urandom | base64)" > {path})`'


def try_hooks(settings: Settings, event: str | None, report: Callable[[str], None] = typer.echo) -> bool:
    """Send a sample event to each hook, or to one. Print a line for each, and return whether all have taken it.

    Raises `SettingsError` if there is no such hook.
    """
    hooks = [(hook, setting) for hook, setting in _by_name(settings) if event in (None, hook)]
    if not hooks:
        which = "no hook is set" if event is None else f"hook {event!r} is not set"
        raise SettingsError(f"{which}: write a table [hooks] in sidecar.toml, with some of {', '.join(HOOKS)}")
    return all([_test(settings.run, hook, setting, report) for hook, setting in hooks])  # noqa: C419 - try all of them


def _test(run: str, hook: HookName, setting: HookSetting, report: Callable[[str], None]) -> bool:
    began = time.monotonic()
    try:
        target = make_target(hook, setting)
        sample = _sample(run, hook, time.time(), secrets.token_hex(16))
        best = BestSoFar()
        best.note(_sample_evaluation(run, 0.0, "sample", hook="best"))
        target.send(event_json(hook, sample, best, test=True), event_id(hook, sample))
    except SidecarError as error:
        report(printable(f"{hook}: failed: {error}"))
        return False
    report(printable(f"{hook}: {target.shown} has taken the sample, after {time.monotonic() - began:.1f} s"))
    return True


def directory_and_event(words: Sequence[str]) -> tuple[Path | None, str | None]:
    """Return the checkpoint directory and the hook that a person typed, as far as both are there.

    Raises `SettingsError` if there are several of one of them, or if neither a hook nor a folder has such a name.
    """
    events, others = [word for word in words if word in HOOKS], [word for word in words if word not in HOOKS]
    if unknown := next((word for word in others if not Path(word).is_dir()), None):
        close = difflib.get_close_matches(unknown, HOOKS, n=1)
        similar = f"did you mean {close[0]}?" if close else similar_folder(Path(unknown).absolute())
        remedy = similar or f"hooks are {', '.join(HOOKS)}"
        raise SettingsError(f"{unknown!r} is neither a hook nor a directory: {remedy}")
    if len(events) > 1 or len(others) > 1:
        raise SettingsError(f"{' '.join(words)}: give one directory and one hook: `sidecar hooks test ckpts best`")
    return (Path(others[0]) if others else None), (events[0] if events else None)


def _sample(run: str, hook: HookName, now: float, id_: str) -> Event:
    """Return an event of a hook's kind, with numbers that nobody measured."""
    milliseconds, identity = round(1000 * now), f"test-{id_}"
    if hook == "failure":
        return Failure(
            run=run,
            plan=0,
            checkpoint="sample",
            digest="0" * 64,
            step=0,
            final=False,
            kind="task_error",
            message="this is a sample of `sidecar hooks test`: nothing failed",
            milliseconds=milliseconds,
            id=identity,
            attempt=1,
        )
    if hook == "end":
        return RunEnd(
            run=run,
            plan=0,
            reason="this is a sample of `sidecar hooks test`: the run goes on",
            failed=0,
            checkpoints={"evaluated": 1},
            best={
                "sample/accuracy": Best(
                    goal="max", hex=(0.5).hex(), step=0, folder="", checkpoint="sample", step_source="name"
                )
            },
            milliseconds=milliseconds,
            id=identity,
        )
    return _sample_evaluation(run, now, identity, hook=hook)


def _sample_evaluation(run: str, now: float, id_: str, *, hook: HookName) -> Evaluation:
    value = Value(value=None, hex="nan", goal="max") if hook == "nan" else Value(value=0.5, hex=(0.5).hex(), goal="max")
    return Evaluation(
        run=run,
        plan=0,
        checkpoint=Checkpoint(name="sample", digest="0" * 64, step=0, format="sample", step_source="name"),
        result=Result(
            group="sample",
            workers=1,
            examples={"sample": 1},
            metrics={"sample": {"accuracy": value}},
            phases={},
            variables="",
            task="",
            profile={},
            saves=(),
            nonfinite={"sample": {"prediction": Nonfinite(1, 0, 0)}} if hook == "nan" else {},
        ),
        milliseconds=round(1000 * now),
        id=id_,
    )
