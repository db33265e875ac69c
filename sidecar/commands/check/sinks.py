"""Try to make the sinks and hooks of the settings, as a daemon does at its start."""

from collections.abc import Iterator

from sidecar.commands.check.finding import Finding
from sidecar.commands.hooks import make_hooks
from sidecar.commands.sinks import make_sinks
from sidecar.errors import SettingsError
from sidecar.settings import Settings


def sinks(settings: Settings) -> Iterator[Finding]:
    """Report the sinks, if there are any. None of them is asked to take anything."""
    try:
        names = [sink.name for sink in make_sinks(settings)]
    except SettingsError as error:
        yield Finding(what="sinks", ok=False, text=str(error))
        return
    if names:
        yield Finding(what="sinks", ok=True, text=f"{', '.join(names)}: every result is sent there")


def hooks(settings: Settings) -> Iterator[Finding]:
    """Report the hooks, if there are any. None of them is called."""
    if settings.hooks:
        try:
            names = ", ".join(hook.hook for hook in make_hooks(settings))
            yield Finding(what="hooks", ok=True, text=f"{names} can be called: `sidecar hooks test` tries them")
        except SettingsError as error:
            yield Finding(what="hooks", ok=False, text=str(error))
