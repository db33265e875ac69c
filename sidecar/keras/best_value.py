"""Store the best value of an exported model next to the exports, so that a restarted evaluator knows it.

The file `.best-<digest>.json` holds monitor, mode, value, export, checkpoint, and what tells the data apart. Imports no
framework.
"""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

from sidecar.keras.evaluation_loop import LOG
from sidecar.system.confined import open_folder
from sidecar.system.durable import replace

_MOST_BYTES: Final = 64 * 1024


class BestValue:
    """Represent the stored best value of one kind of exports. `template`: path of the exports, with placeholders."""

    def __init__(self, folder: Path, template: str, monitor: str, mode: str) -> None:
        self._folder, self._monitor, self._mode = folder, monitor, mode
        kind = f"{Path(template).name}\0{monitor}\0{mode}"
        self._name = f".best-{hashlib.sha256(kind.encode(errors='surrogateescape')).hexdigest()[:12]}.json"

    def read(self, data: str | None = None) -> float | None:
        """Return the value; None if there is none, the export that had it is gone, or it is of other data.

        `data`: what tells the data of the evaluation apart; None: unknown.
        """
        try:
            with open_folder(self._folder) as folder:
                content = folder.read(self._name, _MOST_BYTES)
            record = json.loads(content)
            value = float.fromhex(record["value"])
            if data is not None and record.get("data") not in (None, data):
                LOG.warning("the best value %g is of other data, so it is not compared", value)
                return None
            return value if (self._folder / record["export"]).exists() else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            LOG.warning("%s cannot be read, so the next model counts as the best: %s", self._folder / self._name, error)
            return None

    def write(self, value: float, export: Path, checkpoint: str | None, data: str | None = None) -> None:
        """Replace the value. Raises OSError."""
        record = {
            "monitor": self._monitor,
            "mode": self._mode,
            "value": value.hex(),
            "export": str(export.relative_to(self._folder)),
            "checkpoint": checkpoint,
            "data": data,
        }
        with open_folder(self._folder) as folder:
            replace(folder, self._name, json.dumps(record).encode(), temporary=f".tmp-{secrets.token_hex(8)}")
