"""Ask a task for inputs of examples that people should see: `Task(show=…)`. Imports numpy only.

`eval_loop` calls `of` with each batch, and `npy_table` saves what it returns. An example that an evaluation gets right
and another one gets wrong is wrong in one of them. So only examples that may be wrong are asked for.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.slice_table import x_and_y
from sidecar.evaluation.task import call
from sidecar.protocol.example_inputs import (
    LARGEST_SIDE,
    LONGEST_TEXT,
    MOST_BYTES,
    MOST_IMAGE_BYTES,
    MOST_INPUTS,
    Input,
    image_type,
)
from sidecar.system.plain_text import cut

_LARGEST_THUMBNAIL: Final = 96  # pixels from side to side
_CHANNELS: Final[Mapping[int, int]] = {1: 0, 3: 2, 4: 6}  # the colour type of PNG by the number of channels
_BASE64: Final = 4 / 3


class ExampleInputs:
    """Collect inputs of one eval set in one evaluation: at most so many, in so many bytes of the file.

    `show` is the task's function; None: nothing is collected.
    """

    def __init__(
        self,
        eval_set: str,
        show: Callable[[Any, Any], Any] | None,
        most: int = MOST_INPUTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._where = f"Task(show=…) of {eval_set!r}"
        self._show = show
        self._left, self._bytes_left = most, float(most_bytes)

    def of(
        self, batch: Batch, first: int | None, examples: int, columns: Mapping[str, NDArray[Any]]
    ) -> dict[int, Input]:
        """Return inputs of examples of a batch by their number in the data. Raises `TaskError`.

        `first`: the number of its first example. Without it examples are not compared, so nothing is returned.
        """
        if self._show is None or first is None or not self._left:
            return {}
        x, y = x_and_y(batch)
        found = dict[int, Input]()
        for row in maybe_wrong(columns, examples)[: self._left]:
            returned = call("Task(show=…)", self._show, _row(x, row), _row(y, row))
            if returned is None:
                continue
            shown = self._checked(returned, first + row)
            self._bytes_left -= 100 + (6 * len(shown) if isinstance(shown, str) else _BASE64 * len(shown))
            if self._bytes_left < 0:
                self._left = 0
                return found
            self._left -= 1
            found[first + row] = shown
        return found

    def _checked(self, returned: Any, place: int) -> Input:
        """Return what the task returned as a text or an image. Raises `TaskError`."""
        if hasattr(returned, "__array__") and not isinstance(returned, np.generic):
            array = np.asarray(returned)
            if array.ndim not in (2, 3) or array.dtype.kind not in "biuf" or not array.size:
                raise TaskError(
                    f"{self._where} returned an array of {array.dtype} {array.shape} for example {place}: return "
                    f"pixels (height, width) or (height, width, 1, 3 or 4), the bytes of a PNG or JPEG, or a text"
                )
            return thumbnail(array)
        if isinstance(returned, bytes) and image_type(returned) is None:
            try:
                returned = returned.decode()
            except ValueError:
                raise TaskError(
                    f"{self._where} returned {len(returned)} bytes for example {place} that are neither a text nor a "
                    f"PNG or JPEG of at most {LARGEST_SIDE} pixels a side and {MOST_IMAGE_BYTES} bytes: return a "
                    f"smaller image, or an array of pixels"
                ) from None
        if isinstance(returned, bytes):
            return bytes(returned)
        if not isinstance(returned, str):
            raise TaskError(
                f"{self._where} returned a {type(returned).__name__} for example {place}: return a text, the bytes of "
                f"a PNG or JPEG, an array of pixels, or None for nothing"
            )
        return cut(returned, LONGEST_TEXT)


def maybe_wrong(columns: Mapping[str, NDArray[Any]], examples: int) -> list[int]:
    """Return the rows of a batch whose prediction is not the label; all if the columns do not say."""
    y, predictions = columns.get("y"), columns.get("predictions")
    if y is None or predictions is None or len(y) != examples or len(predictions) != examples:
        return list(range(examples))
    labels, guesses = y.reshape(examples, -1), predictions.reshape(examples, -1)
    label = labels.argmax(axis=1) if labels.shape[1] > 1 else labels[:, 0]
    guess = guesses.argmax(axis=1) if guesses.shape[1] > 1 else guesses[:, 0] > 0.5  # noqa: PLR2004 - a probability
    return [int(row) for row in np.flatnonzero(guess != label)]


def thumbnail(pixels: NDArray[Any]) -> bytes:
    """Return a PNG of pixels (height, width), (height, width, channels) or (channels, height, width).

    Numbers that are not bytes are scaled: from 0 to 1, or from their smallest to their largest. Of large images, pixels
    are left out.
    """
    image = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels  # noqa: PLR2004 - without channels
    if image.shape[-1] not in _CHANNELS and image.shape[0] in _CHANNELS:
        image = np.moveaxis(image, 0, -1)
    if image.shape[-1] not in _CHANNELS:
        image = image[..., :1]
    stride = -(-max(image.shape[:2]) // _LARGEST_THUMBNAIL)
    image = image[::stride, ::stride]
    if image.dtype != np.uint8:
        image = np.nan_to_num(image.astype(np.float64))
        low, high = min(0.0, image.min()), image.max() if image.min() < 0 else max(1.0, image.max())
        image = np.rint(255 * (image - low) / ((high - low) or 1.0)).astype(np.uint8)
    height, width, channels = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, _CHANNELS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def _row(structure: Any, row: int) -> Any:
    """Return the part of one example of arrays of a batch, in the same structure."""
    if isinstance(structure, Mapping):
        return {name: _row(part, row) for name, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_row(part, row) for part in structure)
    return structure if structure is None else structure[row]
