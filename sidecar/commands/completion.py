"""Make the script that completes commands and options in a shell."""

from typing import Final

_ZSH_BEGINS: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"


def script(shell: str, variable: str) -> str:
    """Return the script for bash, zsh or fish; `variable` is the one by which it asks `sidecar` for completions."""
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - only this command needs it

    made = get_completion_script(prog_name="sidecar", complete_var=variable, shell=shell)
    if shell != "zsh":
        return made
    # A ~/.zshrc without any other completion has not loaded the function that defines `compdef`.
    first, rest = made.split("\n", 1)
    return f"{first}\n{_ZSH_BEGINS}\n{rest}"
