"""Start a small guard process that ends the command of a hook, once the daemon is gone: also after SIGKILL.

`hook_command` starts it before the command. The guard waits on a pipe of which only the daemon has the other end. The
file is also the program of that process, so it imports the standard library alone.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Self


class CommandGuard:
    """Guard one command. `with` starts the guard and ends it. Raises `OSError` if it cannot be started."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def _start(self) -> None:
        read_end, self._pipe = os.pipe()
        words = [sys.executable, "-I", "-S", __file__]
        try:
            actions = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
            # Its own session, so that Ctrl-C in a terminal does not end it before the command.
            self._pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(read_end)

    def announced(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return words that tell the guard their process id and become the command: no moment is without a guard."""
        return ("/bin/sh", "-c", f'echo $$ 2>/dev/null >/proc/{self._pid}/fd/0; exec "$@"', "sh", *command)

    def renew(self, group: int) -> None:
        """Start another guard for the group if somebody ended this one. Raises `OSError` if that is not possible."""
        if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.__exit__()
            self._start()
            self.watch(group)

    def watch(self, group: int) -> None:
        """Tell the guard which process group it ends."""
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard
            os.write(self._pipe, f"{group}\n".encode())

    def __exit__(self, *_: object) -> None:
        """End the guard. The group must have ended before: its id may belong to other processes soon."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)


def guard() -> None:
    """Read the group from standard input, wait for the end of the input, and kill the group."""
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(1, limit if limit > 0 else 65536)  # nobody waits for the end of a pipe that the guard holds open
    told = b""
    while part := os.read(0, 64):
        told += part
    if told.strip():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(told.split()[-1]), signal.SIGKILL)


if __name__ == "__main__":
    guard()
