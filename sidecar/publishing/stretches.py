"""Find the places of a history where numbers stop being comparable, for all that show it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sidecar.coordination.comparability import Stretches
from sidecar.coordination.journal_state import Closed, Entry

CANNOT: Final = "numbers above and below cannot be compared"


def with_breaks(entries: Iterable[Entry]) -> Iterator[tuple[Closed, Mapping[str, str]]]:
    """Yield each evaluation with, by eval set, why numbers from there on cannot be compared with those before.

    The reasons are clauses. `entries` are in the order of the journal, and may be a part of it.
    """
    stretches = Stretches()
    for entry in entries:
        if isinstance(entry, Closed) and entry.outcome.result is not None:
            yield entry, stretches.add(entry.outcome.result)


def mark(broken: Mapping[str, str]) -> str:
    """Return one sentence about a place: `the data of 'test' changed: numbers above and below cannot be compared`."""
    return f"{'; '.join(dict.fromkeys(broken.values()))}: {CANNOT}"
