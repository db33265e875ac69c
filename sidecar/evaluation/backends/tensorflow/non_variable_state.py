"""Track the state that the layers of a model hold outside their variables: vocabularies, bins, assets and settings.

Ranks compare its digests before they evaluate. A changed table means that steps must be traced again.
"""

from typing import Any

from sidecar.evaluation.backends.tensorflow.completeness import Restored
from sidecar.evaluation.backends.tensorflow.layer_tables import settings_of, tables_of


class NonVariableState:
    """Hold digests of the tables and settings of all layers of one model, from the last time that they were read.

    `model`: the built model; `None` if there is no model, and so no such state.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tables = tables_of(model)
        self._settings = settings_of(model)
        self.restored: Restored | None = None
        """The outcome of the last restore; `None` if the task restored the model itself."""

    @property
    def has_tables(self) -> bool:
        """Return whether any layer holds a vocabulary, bins or assets."""
        return bool(self._tables)

    def read_tables(self) -> bool:
        """Read the tables again, and return whether they changed since they were last read."""
        before, self._tables = self._tables, tables_of(self._model)
        return [table.digest for table in before] != [table.digest for table in self._tables]

    def read_settings(self) -> None:
        """Read the settings of the layers again."""
        self._settings = settings_of(self._model)

    def digests(self) -> dict[str, str]:
        """Return the digest of each table and of the settings of each layer, by a readable name."""
        return {f"settings of {name}": digest for name, digest in self._settings.items()} | {
            f"vocabulary, bins or assets of {table.name}": table.digest for table in self._tables
        }

    def notes(self) -> tuple[str, ...]:
        """Return notes about the restore, and about tables that the checkpoint lacks and the task provides."""
        if self.restored is None:
            return ()
        restored = {id(layer) for layer in self.restored.layers}
        names = [table.name for table in self._tables if id(table.layer) not in restored]
        if not names:
            return self.restored.notes
        return (
            *self.restored.notes,
            f"{', '.join(names)}: vocabulary, bins or assets come from the task, as the checkpoint has none",
        )
