"""Every state of the filesystem that a writer passes through: its system calls, recorded, then replayed elsewhere."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

Call = tuple[str, str, int, bool]

_CALLS = (
    "openat,write,pwrite64,writev,sendfile,lseek,ftruncate,close,rename,renameat,renameat2,unlink,unlinkat,mkdir,rmdir"
)
_LINE = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<answer>-?\d+)(?P<path><(?:\\x[0-9a-f]{2})*>)?")
_HEX = r'"((?:\\x[0-9a-f]{2})*)"'
_FD = r"(\d+)<((?:\\x[0-9a-f]{2})*)>(?:\(deleted\))?"


class Recorder:
    """strace on a running process, between `start` and `stop`."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid, self._log = pid, log
        self._process: subprocess.Popen | None = None

    @staticmethod
    def reason_not_to() -> str | None:
        """Why nothing can be recorded here; None if it can."""
        return None if shutil.which("strace") else "strace is not installed"

    def start(self) -> None:
        """Returns once the process is being traced."""
        command = ["strace", "-f", "-y", "-xx", "-s", "16777216", "-e", f"trace={_CALLS}", "-o", str(self._log)]
        self._process = subprocess.Popen([*command, "-p", str(self._pid)], stderr=subprocess.PIPE, text=True)
        line = self._process.stderr.readline()  # "strace: Process … attached", for the first of its threads
        assert "attached" in line, f"strace cannot attach: {line}"
        deadline = time.monotonic() + 30
        while not self._is_traced():
            assert time.monotonic() < deadline, "strace did not attach to every thread"
            time.sleep(0.05)

    def stop(self) -> str:
        """End it; the answer is the log."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=240)
        return self._log.read_text()

    def _is_traced(self) -> bool:
        tasks = Path(f"/proc/{self._pid}/task")
        return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks.iterdir())


def operations(calls: list["Call"], source: Path, after: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Return what was done under `source`, call by call: a word for it, and how to do it under another folder.

    `after`: the folder as it was afterwards, for content that came from outside. A long write is two operations: half
    of it, then all.
    """
    offsets: dict[str, int] = defaultdict(int)  # by path: several processes may write at once, and number files alike
    for name, arguments, answer, opened in calls:
        if answer < 0:
            continue
        file = re.match(_FD, arguments)
        if name == "openat" and opened:
            offsets[_text(re.findall(_HEX, arguments)[-1])] = 0
        elif name == "lseek" and file:
            offsets[_text(file[2])] = answer
        if file and name in ("write", "writev", "pwrite64", "sendfile", "ftruncate"):
            path, last = _text(file[2]), arguments.rpartition(",")[2]
            offset = int(last) if name == "pwrite64" else offsets[path]
            if name in ("write", "writev", "sendfile"):
                offsets[path] += answer
            if path.startswith(f"{source}/"):
                yield from _on_file(name, os.path.relpath(path, source), arguments, answer, offset, after)
        else:
            folder = _text(file[2]) if file else ""  # names may be relative to an opened one, as those of `rmtree`
            paths = [str(Path(folder, _text(each))) for each in re.findall(_HEX, arguments)]
            inside = [os.path.relpath(path, source) for path in paths if path.startswith(f"{source}/")]
            if inside:
                yield from _on_names(name, inside, arguments, after)


def _on_file(
    name: str, place: str, arguments: str, answer: int, offset: int, after: Path
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    if name == "ftruncate":
        yield "truncate", _truncating(place, int(arguments.rpartition(",")[2]))
        return
    data = b"".join(_bytes(each) for each in re.findall(_HEX, arguments))[:answer]
    if name == "sendfile":  # from another file, which may be gone
        data = (after / place).read_bytes()[offset : offset + answer]
    for part in sorted({len(data) // 2, len(data)} - {0}):
        yield "write", _writing(place, offset, data[:part])


def _on_names(
    name: str, inside: list[str], arguments: str, after: Path
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    if name == "openat":
        if re.search(r"O_CREAT|O_TRUNC", arguments):
            yield "open", _opening(inside[0], truncate="O_TRUNC" in arguments)
    elif name.startswith("rename") and len(inside) == 2:
        yield "rename", _renaming(*inside)
    elif name.startswith("rename"):
        assert _text(re.findall(_HEX, arguments)[-1]).endswith(inside[0]), "nothing leaves the folder"
        yield "rename", _appearing(inside[0], (after / inside[0]).read_bytes())
    elif name == "rmdir" or "AT_REMOVEDIR" in arguments:
        yield "rmdir", _removing_folder(inside[0])
    elif name.startswith("unlink"):
        yield "unlink", _removing(inside[0])
    elif name == "mkdir":
        yield "mkdir", _making(inside[0])


def read_calls(log: str) -> list["Call"]:
    """Return what `Recorder.stop` returned, taken apart."""
    return list(_calls(log))


def _calls(log: str) -> Iterator["Call"]:
    """Name, arguments, answer, and whether the answer is a file; interrupted lines are joined."""
    pending: dict[str, str] = {}
    for line in log.splitlines():
        found = _LINE.fullmatch(line)
        if not found:
            continue
        pid, rest = found["pid"], found["rest"]
        if rest.endswith("<unfinished ...>"):
            pending[pid] = rest.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", rest):
            rest = pending.pop(pid, "") + rest[resumed.end() :]
        if call := _CALL.match(rest):
            yield call["name"], call["arguments"], int(call["answer"]), call["path"] is not None


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _text(escaped: str) -> str:
    return os.fsdecode(_bytes(escaped))


def _opening(name: str, *, truncate: bool) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        with (folder / name).open("r+b" if (folder / name).exists() else "x+b") as file:
            if truncate:
                file.truncate(0)

    return do


def _writing(name: str, offset: int, data: bytes) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return do


def _truncating(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def _renaming(old: str, new: str) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        (folder / old).replace(folder / new)

    return do


def _appearing(name: str, content: bytes) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        outside = folder.parent / f"{folder.name}-outside"
        outside.write_bytes(content)
        outside.replace(folder / name)

    return do


def _removing(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _making(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).mkdir()


def _removing_folder(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).rmdir()
