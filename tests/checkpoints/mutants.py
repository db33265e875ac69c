"""Changes the files of one recorded checkpoint at random, and lets every format read what became of them.

The program gets the folder, the number of mutants, the first seed, and a folder to work in. Its one line of output has
the number of calls, the most CPU seconds of one call, the bytes of memory that all of them took, and each exception
that is not an answer, by the seed that makes it again: `python mutants.py FOLDER 1 SEED WORK`.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints.bounded import of_memory

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS, Candidate, Format
from sidecar.errors import CheckpointError

LENGTHS = (
    bytes(8),
    b"\xff" * 8,
    b"\xff" * 9 + b"\x01",
    (1 << 62).to_bytes(8, "little"),
    b"\xfe\xff\xff\xff",
    b"\0",
    b"\x95",
)
UNITS = (
    b'"":1,',
    b"[],",
    b"{",
    b"[",
    b"0,",
    b"\x94",
    b"PK\1\2",
    b"PK\5\6",
    b"X\1\0\0\0a",
    b"(",
    b"}q\0",
    b"\x08\x01",
    b"\\u0041",
    b" ",
    b"\0",
)
MOST_REPEATED = 300_000


def main() -> None:
    """Read the arguments, try all mutants, and print what was found."""
    source, count, first, work = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    shutil.copytree(source, work, dirs_exist_ok=True)
    files = sorted(path for path in work.rglob("*") if path.is_file())
    originals = {path: path.read_bytes() for path in files}
    found = [(format_, candidate) for format_ in FORMATS.values() for candidate in _candidates(format_, work)]
    calls, slowest, unhandled = 0, (0.0, ""), dict[str, str]()
    for _, each in _calls(found, work):  # what is imported and cached is not the mutants'
        _end_of(each)
    before = of_memory("VmHWM")
    for seed in range(first, first + count):
        chance = random.Random(seed)
        changed = chance.choice(files)
        mutant = mutated(chance, originals[changed])
        changed.write_bytes(resealed(changed, mutant, originals[changed]) if chance.random() < 0.5 else mutant)
        for what, call in _calls(found, work):
            begin = time.process_time()
            error = _end_of(call)
            calls += 1
            slowest = max(slowest, (time.process_time() - begin, f"{what} of seed {seed}"))
            if error is not None:
                unhandled[f"{what} of seed {seed}"] = error
        changed.write_bytes(originals[changed])
    grown = of_memory("VmHWM") - before
    sys.stdout.write(json.dumps({"calls": calls, "slowest": slowest, "grown": grown, "unhandled": unhandled}) + "\n")


def mutated(chance: random.Random, content: bytes) -> bytes:
    """Return the content after one to three changes."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.choice(
            (
                chance.randint(0, len(changed)),
                len(changed) - chance.randint(0, min(300, len(changed))),
                chance.randint(0, min(300, len(changed))),
            )
        )
        match chance.randint(0, 6):
            case 0:  # other bytes
                changed[at : at + 4] = chance.randbytes(chance.randint(0, 8))
            case 1:  # one bit
                if at < len(changed):
                    changed[at] ^= 1 << chance.randint(0, 7)
            case 2:  # a length
                length = chance.choice(LENGTHS)
                changed[at : at + chance.choice((0, len(length)))] = length
            case 3:  # cut off
                del changed[at:]
            case 4:  # a part that is missing, or that comes twice
                end = min(len(changed), at + chance.randint(1, 5000))
                changed[at:end] = changed[at:end] * chance.choice((0, 2, 50))
            case 5:  # very many short items
                changed[at:at] = chance.choice(UNITS) * chance.choice((3, 3000, chance.randint(1, MOST_REPEATED)))
            case _:  # a number in a text
                digits = chance.choice((b"0", b"-1", b"9" * 30, b"1e400", b"NaN", b'"x"', b"null", b"[]", b"9" * 5000))
                place = changed.find(chance.choice(b"0123456789"), at)
                changed[max(place, 0) : max(place, 0) + 1] = digits
    return bytes(changed)


def resealed(path: Path, mutant: bytes, original: bytes) -> bytes:
    """Return a mutant whose first length is right again, so that readers get further, if the file has such a length."""
    if path.suffix == ".safetensors":
        values = len(original) - 8 - int.from_bytes(original[:8], "little")
        return max(0, len(mutant) - 8 - values).to_bytes(8, "little") + mutant[8:]
    if path.name == ".metadata" and original[2:3] == b"\x95":
        return mutant[:3] + max(0, len(mutant) - 11).to_bytes(8, "little") + mutant[11:]
    return mutant


def _candidates(format_: Format, folder: Path) -> list[Candidate]:
    return list(format_.candidates(folder, list_files(folder)))


def _calls(found: list[tuple[Format, Candidate]], folder: Path) -> list[tuple[str, Callable[[], Any]]]:
    """Return what a daemon does with each checkpoint: find it, inspect it, compare its checksums."""
    calls: list[tuple[str, Callable[[], Any]]] = []
    for format_, candidate in found:
        calls += [
            (f"candidates as {format_.name}", lambda format_=format_: _candidates(format_, folder)),
            (f"inspect as {format_.name}", lambda format_=format_, name=candidate.name: format_.inspect(folder, name)),
            (f"check as {format_.name}", lambda format_=format_, name=candidate.name: format_.check(folder, name)),
        ]
    return calls


def _end_of(call: Callable[[], Any]) -> str | None:
    """Return the error that is no answer; None if there is none."""
    try:
        call()
    except CheckpointError:
        return None
    except Exception as error:  # noqa: BLE001 - this is what is searched for
        return f"{type(error).__name__}: {error}"[:300]
    return None


if __name__ == "__main__":
    main()
