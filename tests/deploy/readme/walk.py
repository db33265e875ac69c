"""Inside a clean container: runs every `$ command` of the README in order, as a person would, and times each.

Usage: walk.py README.md REPOSITORY.bundle. Exits non-zero if a command fails. A command that stays (`sidecar run`) goes
to the background once it evaluated what is there, and is interrupted at the end. Needs the standard library only.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

BOUND_SECONDS = 1200.0
NOT_HERE = {
    "docker compose": "needs a Docker engine: deploy/compose/try walks through it",
    "xdg-open": "needs a screen",
    "make test": "the whole suite: .ci/run calls it in a fresh clone",
    "sudo": "needs systemd: tests/deploy/systemd/try walks through it",
    "kubectl": "needs a cluster",
}


@dataclass
class Walk:
    """Where the reader is, and what was found."""

    folder: Path
    environ: dict[str, str]
    failed: bool = False
    daemon: subprocess.Popen[bytes] | None = None

    def do(self, command: str) -> None:
        """Type one command."""
        reason = next((why for start, why in NOT_HERE.items() if command.startswith(start)), None)
        if reason is not None:
            print(f"   ---    $ {command}    [{reason}]", flush=True)
            return
        started = time.monotonic()
        ok = self._stay(command) if command.startswith("sidecar run") else self._run(command)
        self.failed |= not ok
        print(f"{time.monotonic() - started:6.1f} s  $ {command}    [{'ok' if ok else 'FAILED'}]", flush=True)

    def _run(self, command: str) -> bool:
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                command,
                shell=True,
                cwd=self.folder,
                env=self.environ,
                stdout=said,
                stderr=said,
                timeout=BOUND_SECONDS,
                check=False,
            )
            if done.returncode != 0:
                said.seek(0)
                print(said.read().decode(errors="replace")[-4000:])
        return done.returncode == 0

    def _stay(self, command: str) -> bool:
        log = self.folder / "daemon.log"
        with log.open("wb") as said:
            words = shlex.split(command)
            self.daemon = subprocess.Popen(words, cwd=self.folder, env=self.environ, stdout=said, stderr=said)
        end = time.monotonic() + BOUND_SECONDS
        while time.monotonic() < end and self.daemon.poll() is None:
            try:
                status = urllib.request.urlopen("http://127.0.0.1:19108/api/status", timeout=5).read()
                if b'"evaluated": 3' in status:
                    return True
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        print(log.read_text(errors="replace")[-4000:])
        return False

    def leave(self) -> None:
        """Press Ctrl-C in the first terminal."""
        if self.daemon is None:
            return
        started = time.monotonic()
        self.daemon.send_signal(signal.SIGINT)
        code = self.daemon.wait(BOUND_SECONDS)
        self.failed |= code != 0
        print(f"{time.monotonic() - started:6.1f} s  Ctrl-C: the daemon ended with exit code {code}", flush=True)


def commands(readme: str) -> list[str]:
    """The lines that a person types, without what the README says beside them."""
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s{2,}#.*", "", line) for line in lines]


def main(readme: Path, bundle: Path) -> int:
    """Walk from an empty home directory."""
    home = Path(tempfile.mkdtemp())
    text = readme.read_text()
    own = home / "own"  # where a reader keeps the own training job, in a virtual environment
    own.mkdir()
    for name, source in re.findall(r"<!-- (\S+\.py) -->\n```python\n(.*?)```", text, re.DOTALL):
        (own / name).write_text(source)
    walk = Walk(
        home, {**os.environ, "HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    )
    for command in commands(text):
        if command.startswith("git clone"):
            # The repository's address is the reader's; here it is a bundle.
            walk.do(command.replace("<this repository>", str(bundle)).replace(" && cd sidecar-evaluator", ""))
            walk.folder = home / "sidecar-evaluator"
        elif command.startswith("python3 -m venv"):
            # Before that a reader has an environment that trains, and it is active.
            walk.do(
                f"python3 -m venv {own}/venv && {own}/venv/bin/pip install -c tests/constraints.txt tensorflow keras"
            )
            walk.environ["PATH"] = f"{own}/venv/bin:{walk.environ['PATH']}"
            walk.do(command)
        elif command.startswith("export "):
            shown = subprocess.run(f"{command}; env -0", shell=True, env=walk.environ, capture_output=True, check=True)
            walk.environ = dict(line.split("=", 1) for line in shown.stdout.decode().split("\0") if line)
            walk.folder = own
        else:
            walk.do(command)
    walk.leave()
    print("the README's commands FAILED" if walk.failed else "the README's commands work")
    return int(walk.failed)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
