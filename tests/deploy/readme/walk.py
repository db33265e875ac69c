"""Inside a chroot: type the README in two terminals, as a reader who has a training job does, and time each step.

Usage: walk.py README.md. Exit code 1 if a step fails. The reader's home holds the clone in `sidecar-evaluator`, and the
training job in `job`. A package index is not needed: pip finds all in PIP_FIND_LINKS. Needs the standard library only.
"""

import os
import pty
import re
import select
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

BOUND_SECONDS = 600.0
HOME = Path.home()
JOB = HOME / "job"
STATUS = "http://127.0.0.1:19108/api/status"
PROMPT = re.compile(rb"\[(\d+)\]typed> $")
CHECKPOINTS = 3  # which the job saves


class StepFailedError(Exception):
    """A step of the README did not do what the README says."""


@dataclass
class Terminal:
    """A terminal with a shell that nobody has configured."""

    number: int
    folder: Path
    descriptor: int = field(init=False)

    def __post_init__(self) -> None:
        child, self.descriptor = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.environ["PS1"] = "[$?]typed> "
            os.execv("/bin/bash", ["bash", "--noprofile", "--norc", "--noediting", "-i"])
        self._read()

    def type(self, command: str) -> str:
        """Type a command, and return what the terminal shows until its end, which must be a success."""
        started = time.monotonic()
        os.write(self.descriptor, command.encode() + b"\n")
        code, shown = self._read()
        tell(started, f"terminal {self.number}: {command}")
        if code != 0:
            raise StepFailedError(f"exit code {code}:\n{shown}")
        return shown

    def begin(self, command: str) -> float:
        """Type a command that stays, and return when."""
        os.write(self.descriptor, command.encode() + b"\n")
        return time.monotonic()

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for a prompt after a success."""
        started = time.monotonic()
        os.write(self.descriptor, b"\x03")
        code, shown = self._read()
        tell(started, f"terminal {self.number}: Ctrl-C")
        if code != 0:
            raise StepFailedError(f"exit code {code} after Ctrl-C:\n{shown}")

    def shown(self) -> str:
        """Return what the terminal shows now, after what was read before."""
        text = b""
        while select.select([self.descriptor], [], [], 0.2)[0]:
            text += os.read(self.descriptor, 65536)
        return text.decode(errors="replace")

    def _read(self) -> tuple[int, str]:
        """Read to the next prompt, and return the exit code in it and the text before it."""
        text, end = b"", time.monotonic() + BOUND_SECONDS
        while not (prompt := PROMPT.search(text)):
            if not select.select([self.descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                raise StepFailedError(f"no prompt within {BOUND_SECONDS:.0f} s:\n{text.decode(errors='replace')}")
            text += os.read(self.descriptor, 65536)
        return int(prompt[1]), text.decode(errors="replace")


def tell(started: float, what: str) -> None:
    """Print how long a step took."""
    print(f"{time.monotonic() - started:6.1f} s  {what}", flush=True)


def require(holds: bool, shown: str) -> None:
    """Fail with what a terminal has shown, unless something holds."""
    if not holds:
        raise StepFailedError(f"this was not expected:\n{shown}")


def wait(evaluated: int, terminal: Terminal, started: float, what: str) -> None:
    """Wait until the page's server has counted so many evaluations, and print when that was."""
    while time.monotonic() < started + BOUND_SECONDS:
        try:
            status = urllib.request.urlopen(STATUS, timeout=5).read().decode()
        except (urllib.error.URLError, OSError):
            status = ""
        if (found := re.search(r'"evaluated": ?(\d+)', status)) and int(found[1]) >= evaluated:
            tell(started, what)
            return
        time.sleep(0.05)
    raise StepFailedError(f"{what}: not within {BOUND_SECONDS:.0f} s:\n{terminal.shown()}")


def main(readme: Path) -> int:
    """Prepare what a reader has already, then type."""
    text = readme.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    install, init, run = (line.partition("  #")[0].rstrip() for block in blocks for line in block.splitlines())
    (task,) = re.findall(r"<!-- sidecar_task\.py -->\n```python\n(.*?)```", text, re.DOTALL)
    program = run.removesuffix(" run")
    try:
        first = Terminal(1, HOME)
        print("what a reader has already:", flush=True)
        first.type("python3 -m venv train-env && train-env/bin/pip install torch numpy")
        first.type(". train-env/bin/activate")
        first.type("(cd job && torchrun --nproc-per-node 2 train_ddp.py)")
        print("the README:", flush=True)
        began = time.monotonic()
        first.type(install)
        first.type("cd job")
        said = first.type(init)
        require(f"complete checkpoints: {CHECKPOINTS}" in said and "train-env/bin/python" in said, said)
        (JOB / "sidecar_task.py").write_text(task)
        second = Terminal(2, JOB)
        started = second.begin(run)
        wait(1, second, started, f"terminal 2: {run}: the first number")
        tell(began, "all from the first line to the first number")
        wait(CHECKPOINTS, second, started, f"terminal 2: all {CHECKPOINTS} checkpoints")
        first.type(f"{program} check")
        first.type(f"{program} status")
        shown = first.type(f"{program} history")
        require(len(re.findall(r"^ *\d+ epoch-\d\.pt +ok ", shown, re.MULTILINE)) == CHECKPOINTS, shown)
        first.type("torchrun --nproc-per-node 2 train_ddp.py")
        wait(2 * CHECKPOINTS, second, time.monotonic(), "terminal 2: the checkpoints of a second training")
        second.interrupt()
    except StepFailedError as error:
        print(f"FAILED: {error}")
        return 1
    print("the README works as it is typed")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
