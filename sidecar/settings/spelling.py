"""Spell a setting as an option, as an environment variable and in an error."""

from typing import Final

PREFIX: Final = "SIDECAR_"
CONFIG: Final = "config"  # says where the file is, so it is not a setting and cannot stand in the file


def ways(key: str) -> str:
    """Return the ways to give a setting, for an error."""
    return f"give {option(key)}, {variable(key)} or {key} in sidecar.toml"


def option(key: str) -> str:
    """Return the option that gives a setting."""
    return "--once" if key == "wait" else f"--{key.replace('_', '-')}"


def variable(key: str) -> str:
    """Return the environment variable that gives a setting."""
    return f"{PREFIX}{key.upper()}"
