"""Recognise by its first bytes what wrote a file, to say which function loads it if the task's own does not.

A file is never loaded here. Sources: the formats' specifications, and files that the libraries wrote.
"""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: its first bytes, a name, what loads it, and the libraries whose own errors say enough."""

    begins: tuple[bytes, ...]
    name: str
    loads: str
    libraries: tuple[str, ...]


_KINDS: Final = (
    _Kind(
        tuple(bytes([0x80, protocol]) for protocol in range(2, 6)),
        "a pickle",
        "joblib.load, or lambda path: pickle.load(open(path, 'rb'))",
        ("pickle", "joblib", "cloudpickle", "dill", "torch"),
    ),
    _Kind(
        (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b", b"BZh", b"\xfd7zXZ"),
        "a compressed file, such as joblib.dump(…, compress=3) writes",
        "joblib.load",
        ("joblib", "gzip", "bz2", "lzma", "zlib"),
    ),
    _Kind(
        (b"PK\x03\x04",),
        "a zip archive, such as torch.save, numpy.savez, skops and Keras write",
        "lambda path: torch.load(path, weights_only=True), numpy.load, skops.io.load or keras.models.load_model",
        ("zipfile", "torch", "numpy", "skops", "keras"),
    ),
    _Kind((b"\x93NUMPY",), "an array of numpy", "numpy.load", ("numpy",)),
    _Kind(
        (b"\x89HDF\r\n\x1a\n",),
        "an HDF5 file",
        "keras.models.load_model, or lambda path: h5py.File(path)",
        ("h5py", "keras"),
    ),
    _Kind(
        (b"{L", b'{"learner"', b'{"version"'),
        "a model of XGBoost",
        "lambda path: xgboost.Booster(model_file=path), or load_model of the class that was trained",
        ("xgboost",),
    ),
    _Kind((b"tree\n",), "a model of LightGBM", "lambda path: lightgbm.Booster(model_file=path)", ("lightgbm",)),
    _Kind((b"CBM1",), "a model of CatBoost", "lambda path: catboost.CatBoost().load_model(path)", ("catboost",)),
)


_OF_MAIN: Final = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")


def remedy_for(path: Path, error: BaseException) -> str:
    """Return what loads a file, if another library than that of the file failed to load it; else an empty text.

    A pickle of the script that trained names its classes and functions as those of `__main__`, which a worker is not.
    """
    if found := _OF_MAIN.match(str(error)):
        name = found[1]
        return (
            f"The script that trained defined {name}: define or import {name} in the task's file, and write below it "
            f"import __main__; __main__.{name} = {name}"
        )
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:  # a folder, or a file that is gone
        return ""
    kind = next((each for each in _KINDS if head.startswith(each.begins)), None)
    if kind is None or any(library in kind.libraries for library in _libraries_of(error)):
        return ""
    return f"The file is {kind.name}: write Task(load={kind.loads})"


def _libraries_of(error: BaseException) -> set[str]:
    """Return the names of the libraries and modules in the traceback of an error, and of those that led to it.

    Functions in C, such as `pickle.load`, have no frame: the line that calls one names its library.
    """
    found: set[str] = set()
    part: BaseException | None = error
    while part is not None:
        for frame in traceback.extract_tb(part.__traceback__):
            file = Path(frame.filename)
            found |= {*file.parts, file.stem, *re.findall(r"\w+", frame.line or "")}
        part = part.__cause__ or part.__context__
    return found
