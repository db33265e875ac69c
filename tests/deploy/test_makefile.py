"""Run `make` with an environment that it was given: one that another clone made is used as it is, or refused."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose `make reference` prints where it imports the package from."""
    folder = tmp_path / "clone"
    for name in ("Makefile", "pyproject.toml", "tests/constraints.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    write(folder / "docs/generate.py", "import sidecar\nprint(sidecar.__file__)\n")
    write(folder / "sidecar/__init__.py", "")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that another clone made, which has nothing installed but that clone."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    write(tmp_path / "other/sidecar/__init__.py", "")
    write(packages(folder) / "other.pth", f"{tmp_path / 'other'}\n")
    write(folder / ".ready", f"{tmp_path / 'other'}\n")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))


def needing(*names: str) -> str:
    """Return the metadata of a project that needs these packages for everything."""
    extras = "".join(
        f"{extra} = {list(names)}\n" for extra in ("tensorflow", "torch", "mlflow", "wandb", "buckets", "dev", "docs")
    )
    return f"[project]\ndependencies = {list(names)}\n[project.optional-dependencies]\n{extras}"


def fill(environment: Path) -> None:
    """Give it what this test's own environment has installed."""
    write(
        packages(environment) / "packages.pth", "".join(f"{path}\n" for path in sys.path if path.endswith("-packages"))
    )


def content(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each file with its size and its time."""
    found = {path: path.lstat() for path in folder.rglob("*") if "__pycache__" not in path.parts}
    return {str(path): (status.st_size, status.st_mtime_ns) for path, status in found.items() if not path.is_dir()}


def make(clone: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run make without the variables of a make that runs this test."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VENV"))}
    inherited.pop("PYTHONPATH", None)
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, cwd=clone, env=inherited | variables, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_an_environment_of_another_clone_is_used_as_it_is(clone: Path, environment: Path, way: str) -> None:
    """Its tools read this clone's sources; nothing is installed, though its `.ready` is older than pyproject.toml."""
    fill(environment)
    write(clone / "pyproject.toml", needing("pytest>=8", "pytest_timeout"))
    os.utime(environment / ".ready", (0, 0))
    before = content(environment)
    done = (
        make(clone, "reference", f"VENV={environment}")
        if way == "argument"
        else make(clone, "reference", VENV=str(environment))
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(clone / "sidecar/__init__.py")
    assert content(environment) == before


@pytest.mark.parametrize(("target", "lacks"), [("lint", "ruff"), ("docs", "mkdocs-material"), ("demo", "scikit-learn")])
def test_what_it_lacks_is_told_and_not_installed(clone: Path, environment: Path, target: str, lacks: str) -> None:
    """One sentence with the names and the two ways out."""
    before = content(environment)
    done = make(clone, target, f"VENV={environment}")
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode == 2
    assert sentence.startswith(f"{environment} is not of this clone and is left as it is, but it lacks ")
    assert lacks in sentence
    assert content(environment) == before


def test_it_is_not_removed(clone: Path, environment: Path) -> None:
    """`make clean` removes what this clone made."""
    write(clone / "site/index.html", "")
    assert make(clone, "clean", f"VENV={environment}").returncode == 0
    assert not (clone / "site").exists()
    assert (environment / "bin/python").exists()


@pytest.mark.parametrize("whose", ["new", "its own", "default"])
def test_an_environment_of_this_clone_is_made_and_renewed(clone: Path, environment: Path, whose: str) -> None:
    """Also under a name that VENV gives, such as one for each version of Python."""
    given = {"new": [f"VENV={clone / 'fresh'}"], "its own": [f"VENV={environment}"], "default": []}[whose]
    if whose == "its own":
        write(environment / ".ready", f"{clone}\n")
        os.utime(environment / ".ready", (0, 0))
    shown = make(clone, "--dry-run", "lint", *given).stdout
    assert "pip install" in shown
    assert f"echo '{clone}' >" in shown
