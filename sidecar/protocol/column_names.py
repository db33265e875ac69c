"""Name the files of saved columns. Standard library only: worker processes write them, and the daemon compares them."""

from typing import Final
from urllib.parse import quote

PLACE: Final = "place"
"""Name of the column with the number of each example in the whole eval set, if it is known."""

GROUP: Final = "group"
"""Name of the column with the number of each example's group, if the eval set has groups."""

PREDICTIONS: Final = "predictions"
"""Name of the folder of a worker's columns, with one folder for each eval set."""


def file_name(name: str) -> str:
    """Return a file name for a name that the task chose; it cannot lead to another folder."""
    quoted = quote(name, safe="-_.+=, ", errors="surrogatepass")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
