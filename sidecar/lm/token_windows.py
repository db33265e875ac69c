"""Read texts or packed tokens, and cut them into windows in which each token is predicted once.

Source of the windows: the sliding windows of Hugging Face's page "Perplexity of fixed-length models", and those of the
harness (`lm_eval.utils.get_rolling_token_windows`) if the stride is the window. Packed tokens are those of nanoGPT
(`data/*/prepare.py`: raw uint16) and of Megatron-LM (`core/datasets/indexed_dataset.py`: an index next to the tokens).
"""

import glob
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.failures import task_error

_MEGATRON: Final = b"MMIDIDX\x00\x00"
_TYPES_OF_MEGATRON: Final = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_HEAD_OF_MEGATRON: Final = len(_MEGATRON) + 9  # a number of 8 bytes, the version, and the code of the type


@dataclass(frozen=True, slots=True)
class Documents:
    """Hold the tokens of all documents, and what their numbers are divided by.

    Attributes:
        tokens: The tokens of each document. Those of packed files are one document each.
        words: Number of words in each document; empty for packed tokens, whose texts are unknown.
        sizes: Number of bytes of each document in UTF-8; empty likewise.
        slices: The value by which each document is grouped; empty without one.
        prefix: The token before the first one of each document; None: the first token is not predicted.
    """

    tokens: Sequence[NDArray[Any]]
    words: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    slices: tuple[str, ...] = ()
    prefix: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Name the tokens that a window predicts, from `first` to before `end`, and where its input begins."""

    document: int
    begin: int  # -1: with the prefix
    first: int
    end: int


def windows_of(documents: Documents, length: int, stride: int) -> list[Window]:
    """Return the windows of all documents, the longest first.

    A window has at most `length` tokens as its input, and predicts at most `stride` tokens; the first one of a document
    predicts as many as it can.
    """
    windows = []
    for number, tokens in enumerate(documents.tokens):
        begin = 0 if documents.prefix is None else -1
        first, end = begin + 1, min(begin + 1 + length, len(tokens))
        while first < end:
            windows.append(Window(number, max(begin, end - 1 - length), first, end))
            first, end = end, min(end + stride, len(tokens))
    return sorted(windows, key=lambda window: window.begin - window.end)


def paths_of(files: str | Sequence[str], name: str) -> list[Path]:
    """Return the files of patterns, sorted. Raises `EvaluationError` for a pattern without a file."""
    found: list[Path] = []
    for pattern in [files] if isinstance(files, str) else files:
        matching = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - a pattern may begin with a root
        if not matching:
            raise task_error(
                f"eval set {name!r}: there is no file {pattern!r} in {Path.cwd()}: name the files of texts"
            )
        found += map(Path, matching)
    return found


def read_packed(paths: Sequence[Path], dtype: str) -> Documents:
    """Return packed tokens, of which only what is evaluated is read. Raises `EvaluationError` for another content."""
    return Documents([_packed(path, dtype) for path in paths])


def read_texts(
    paths: Sequence[Path], field: str, by: str | None, encode: Callable[[str], list[int]], prefix: int | None
) -> Documents:
    """Return the tokens of the texts in files of JSON lines. Raises `EvaluationError` for another content."""
    tokens, words, sizes, slices = [], [], [], []
    for path, number, row in _rows(paths):
        missing = [name for name in (field, by) if name is not None and name not in row]
        if missing or not isinstance(row[field], str):
            wrong = f"no {missing[0]!r}" if missing else f"no text as {field!r}"
            raise task_error(
                f"{path}, line {number}: there is {wrong}, but {', '.join(row) or 'nothing'}: write field=…"
            )
        text = row[field]
        tokens.append(np.array(encode(text), np.int64))
        words.append(len(re.split(r"\s+", text)))
        sizes.append(len(text.encode(errors="surrogatepass")))
        slices += [] if by is None else [str(row[by])]
    return Documents(tokens, tuple(words), tuple(sizes), tuple(slices), prefix)


def _packed(path: Path, dtype: str) -> NDArray[Any]:
    if path.suffix == ".npy":
        tokens: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise task_error(f"{path} holds {tokens.dtype} {tokens.shape}, no list of tokens")
        return tokens
    index = path.with_suffix(".idx")
    if index.exists():
        with index.open("rb") as file:
            head = file.read(_HEAD_OF_MEGATRON)
        kind = _TYPES_OF_MEGATRON.get(head[-1]) if head.startswith(_MEGATRON) else None
        if kind is None:
            raise task_error(f"{index} is not an index of Megatron-LM for tokens")
        dtype = kind
    size = np.dtype(dtype).itemsize
    if not path.stat().st_size or path.stat().st_size % size:
        raise task_error(f"{path} has {path.stat().st_size} bytes, no tokens of {dtype}: write dtype=…")
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r")


def _rows(paths: Sequence[Path]) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    for path in paths:
        with _opened(path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise task_error(f"{path}, line {number} is not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise task_error(f"{path}, line {number} is no object of JSON: {line[:40]!r}")
                yield path, number, row


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix != ".zst":
        return path.open(encoding="utf-8")
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise task_error(f"{path} is compressed by zstd: pip install zstandard") from error
    return io.TextIOWrapper(zstandard.open(path, "rb"), encoding="utf-8")
