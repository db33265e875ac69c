"""Storage that fails for one place only: the calls are real, until they are about that file or folder."""

import contextlib
import io
import os
from pathlib import Path


def path_of(path, dir_fd=None) -> str:
    """The absolute path that a call is about: of a descriptor, or of a name in an opened folder."""
    folder = path if isinstance(path, int) else dir_fd
    opened = Path() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
    return str(opened) if isinstance(path, int) else str(opened / os.fspath(path))


class SystemCalls:
    """Functions of `os` that a test makes fail, or that it observes. All other calls of them are carried out."""

    def __init__(self, monkeypatch) -> None:
        self._patch, self._originals = monkeypatch, {}

    def refuse(self, call: str, error, about=lambda *_, **__: True, *, once_done: bool = False) -> None:
        """Raise an error, or the one of that number, for the arguments that `about` returns true for.

        With `once_done` the call is carried out, and its answer is lost.
        """

        def fail(*arguments, **named) -> None:
            if about(*arguments, **named):
                if once_done:
                    self._originals[call](*arguments, **named)
                raise OSError(error, os.strerror(error)) if isinstance(error, int) else error

        self.observe(call, fail)

    def observe(self, call: str, note) -> None:
        """Let `note` know the arguments of each call before it is carried out."""
        original = self._originals.setdefault(call, getattr(os, call))

        def noted(*arguments, **named):
            note(*arguments, **named)
            return original(*arguments, **named)

        self._patch.setattr(os, call, noted)

    def allow(self) -> None:
        """Carry out every call from now on."""
        for call, original in self._originals.items():
            self._patch.setattr(os, call, original)


class Place:
    """A file or folder, and what is below it, of which storage says the same error each time."""

    def __init__(self, path, code: int) -> None:
        self.path, self.code = str(path), code

    def check(self, path, dir_fd=None) -> None:
        """Fail if a call is about it."""
        about = path_of(path, dir_fd)
        if about == self.path or about.startswith(f"{self.path}/"):
            raise OSError(self.code, os.strerror(self.code), about)


@contextlib.contextmanager
def failing(call: str, path, code: int):
    """`call` (stat, open, scandir, read) fails with that error for a path and what is below it."""
    place, opens = Place(path, code), os.fdopen
    names = ("fdopen", "pread") if call == "read" else (call,)
    originals = {name: getattr(os, name) for name in names}

    class Checked(io.FileIO):
        """A file that is open, and is asked about before each read."""

        def read(self, *arguments):
            """Read from the file, unless the test makes reading fail."""
            place.check(self.fileno())
            return super().read(*arguments)

        def readinto(self, buffer):
            """Read from the file into a buffer, unless the test makes reading fail."""
            place.check(self.fileno())
            return super().readinto(buffer)

    def fdopen(descriptor, mode="r", *arguments, **settings):
        return Checked(descriptor, mode) if mode == "rb" else opens(descriptor, mode, *arguments, **settings)

    def checked(name):
        def faulty(path, *arguments, **settings):
            place.check(path, settings.get("dir_fd"))
            return originals[name](path, *arguments, **settings)

        return faulty

    try:
        for name in names:
            setattr(os, name, fdopen if name == "fdopen" else checked(name))
        yield
    finally:
        for name in names:
            setattr(os, name, originals[name])


@contextlib.contextmanager
def hidden(*names: str):
    """Listings of folders miss these names, though the files stand there."""
    original = os.scandir

    class Listing:
        """A listing without them."""

        def __init__(self, entries) -> None:
            self._entries = entries

        def __enter__(self):
            return (entry for entry in self._entries if entry.name not in names)

        def __exit__(self, *_):
            self._entries.close()

    os.scandir = lambda path=".": Listing(original(path))
    try:
        yield
    finally:
        os.scandir = original
