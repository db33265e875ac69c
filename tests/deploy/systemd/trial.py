"""A container with a real systemd as process 1, and the daemon installed in it by `systemd/install`."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
CACHE = Path(os.environ.get("SIDECAR_TRY_CACHE", "") or Path(os.environ.get("TMPDIR", "/tmp"), "sidecar-try-systemd"))
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,ca-certificates"
PYTHON_OF_BOOKWORM = (3, 11)
BASE = f"sidecar-try-systemd:{hashlib.sha256(PACKAGES.encode()).hexdigest()[:8]}"
NAME = f"sidecar-try-systemd-{os.getpid()}"


class Trial:
    """The running container: commands in it, and one line per check."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failed = 0

    def run(self, *command: str, user: str = "root", seconds: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run a command in the container, to its end."""
        return subprocess.run(
            ["docker", "exec", "-u", user, self.name, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def ask(self, *command: str, user: str = "root", seconds: float = 120) -> str:
        """Return what a command prints; an error if it fails."""
        done = self.run(*command, user=user, seconds=seconds)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Put a file there, and the folders above it."""
        self.ask("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", path, text)

    def property(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.ask("systemctl", "show", "--value", "-p", name, unit)

    def journal(self, unit: str) -> str:
        """Return what the unit, and systemd about it, said so far."""
        return self.ask("journalctl", "-u", unit, "-o", "cat", "--no-pager")

    def settings(self, run: str, **changes: object) -> None:
        """Write the settings of a run: those of digits.toml, changed; None leaves one out."""
        lines = self.ask("cat", "/etc/sidecar/digits.toml").splitlines()
        kept = [line for line in lines if line.split(" = ")[0] not in {"run", *changes}]
        added = [f"{key} = {json.dumps(value)}" for key, value in {"run": run, **changes}.items() if value is not None]
        self.write(f"/etc/sidecar/{run}.toml", "\n".join([*kept, *added, ""]))

    def check(self, what: str, holds: object, shown: object = "") -> None:
        """Print the verdict on one thing."""
        self.failed += not holds
        tell(f"{'ok    ' if holds else 'FAILED'} {what}" + (f" ({shown})" if shown != "" else ""))

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Return whether it came true in time."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.5)
        return True


@contextmanager
def booted() -> Iterator[Trial]:
    """Build what is missing, install, boot; the container is removed at the end."""
    if shutil.which("docker") is None or docker("info", quiet=True, check=False).returncode:
        raise SystemExit("try-systemd: needs a running Docker engine, and the right to use it")
    _build_base()
    installed = _install()
    try:
        docker(
            *("run", "--detach", "--name", NAME, "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"),
            "--cap-add",
            "SYS_PTRACE",  # as a machine's own systemd has it: PrivateUsers beside ProtectProc needs it
            *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
            *("--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "--tmpfs", "/run", "--tmpfs", "/tmp"),
            *("--env", "container=docker", "--volume", "/shared", *_mounts(), installed, "/sbin/init"),
        )
        trial = Trial(NAME)
        up = ("running", "degraded")  # degraded: units that a container cannot run, such as remounting its root
        if not trial.wait(lambda: trial.run("systemctl", "is-system-running").stdout.strip() in up, 60):
            logs = docker("logs", NAME, quiet=True, check=False).stdout
            raise SystemExit(f"try-systemd: systemd did not come up in the container\n{logs}")
        yield trial
    finally:
        docker("rm", "--force", "--volumes", NAME, quiet=True, check=False)
        docker("rmi", "--force", installed, quiet=True, check=False)


def tell(line: str) -> None:
    """Print a line now, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def docker(*arguments: str, quiet: bool = True, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run the Docker client; `quiet` keeps what it prints."""
    done = subprocess.run(
        ["docker", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    if check and done.returncode:
        raise SystemExit(f"try-systemd: docker {arguments[0]} failed\n{done.stdout or ''}")
    return done


def framework() -> Path | None:
    """Packages with TensorFlow that the container's Python can use; None: it has to install its own."""
    packages = Path(os.environ.get("SIDECAR_TRY_PACKAGES", "") or sysconfig.get_path("purelib"))
    usable = "SIDECAR_TRY_PACKAGES" in os.environ or sys.version_info[:2] == PYTHON_OF_BOOKWORM
    return packages if usable and (packages / "tensorflow").is_dir() else None


def _build_base() -> None:
    if docker("image", "inspect", BASE, check=False).returncode == 0:
        return
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise SystemExit("try-systemd: the first time it needs root and debootstrap, to make the container's image")
    root = CACHE / BASE.replace(":", "-")
    if not (root / ".done").exists():
        tell(f"building the image in {root} (once; about a minute)")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        with (CACHE / "debootstrap.log").open("w") as log:
            command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
            if subprocess.run(command, stdout=log, stderr=log).returncode:
                raise SystemExit(f"try-systemd: debootstrap failed, see {log.name}")
        (root / ".done").touch()
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        if subprocess.run(["docker", "import", "-", BASE], stdin=tar.stdout, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit("try-systemd: docker import failed")


def _mounts() -> list[str]:
    packages = framework()
    mounts = [f"{CHECKOUT}:/src:ro", *([f"{packages}:/opt/train-packages:ro"] if packages else [])]
    return [part for mount in mounts for part in ("--volume", mount)]


def _install() -> str:
    """Install in a container that has the machine's network and pip settings, and keep the result as an image."""
    name = f"{NAME}-install"
    pip = [Path(path) for path in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")]
    folders = [Path(path) for path in os.environ.get("PIP_FIND_LINKS", "").split() if Path(path).is_dir()]
    mounted = [part for path in [*pip, *folders] if path.exists() for part in ("--volume", f"{path}:{path}:ro")]
    passed = [
        part
        for key in os.environ
        if key.startswith("PIP_") or key.lower().endswith("_proxy")
        for part in ("--env", key)
    ]
    own = framework() is None
    worker_python = "/opt/sidecar/bin/python" if own else "/opt/train/bin/python"
    script = f"""
        set -eu
        /src/systemd/install {"--with tensorflow" if own else ""} >/install.log 2>&1 || {{ cat /install.log; exit 1; }}
        useradd --create-home trainer
        install -D -m 644 -t /opt/digits /src/tests/deploy/systemd/digits/*.py
        sed 's|@WORKER_PYTHON@|{worker_python}|' /src/tests/deploy/systemd/digits.toml >/etc/sidecar/digits.toml
        {":" if own else "python3 -m venv --without-pip /opt/train"}
        {":" if own else "echo /opt/train-packages >/opt/train/lib/python3.11/site-packages/framework.pth"}
    """
    try:
        docker(
            *("run", "--name", name, "--network", "host", *mounted, *passed, *_mounts()),
            *(BASE, "sh", "-c", script),
        )
        docker("commit", name, NAME)
    finally:
        docker("rm", "--force", name, check=False)
    return NAME
