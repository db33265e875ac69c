"""Read a setting that is a table: a table of TOML, or a JSON object as text, as the environment has it."""

import json
from collections.abc import Mapping
from typing import Any


def table_of(value: Any, remedy: str, json_remedy: str | None = None) -> Mapping[Any, Any]:
    """Return the table.

    `value`: the value of the setting. `remedy`: end of the message about a value that is not a table. `json_remedy`:
    end of the message about a text that is not JSON; None: `remedy`.

    Raises `ValueError`.
    """
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"not JSON ({error}): {json_remedy or remedy}") from error
    if not isinstance(parsed, Mapping):
        raise ValueError(remedy)  # noqa: TRY004 - pydantic collects ValueError only
    return parsed
