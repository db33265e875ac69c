"""Show what is built of this repository, and under which name it may be installed. Nothing here needs the network."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.evaluation.source_digest import digest_of, source_digest
from sidecar.version import NEXT

pytestmark = pytest.mark.takes_turns(3)

ROOT = Path(__file__).parents[2]
OURS = {".ci", ".devcontainer", ".github"}
LEFT_BY_TOOLS = {"__pycache__", "build", "dist", "sidecar-demo", "site"}

# Whoever registers the name at a package index first would be installed by these: it is ours nowhere but in a checkout.
BY_NAME = re.compile(
    r"""pip[\w. -]*\sinstall\b[^\n]*[\s'"]sidecar[-_]evaluator(?!\S*/)(?!\S*\s*@\s)  # a command that names it
    |sidecar[-_]evaluator(\[\S*\])?\s*(==|>=|~=)                                    # or a requirement
    |sidecar[-_]evaluator\[\S*\](?!\s*@\s)                                          # or one with an extra
    |\.org/p(roject)?/sidecar                                                       # or its page there
    """,
    re.VERBOSE,
)


def files() -> Iterator[Path]:
    """Every file of the repository, also where git is missing: an unpacked sdist."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_BY_TOOLS and (not name.startswith(".") or name in OURS) and not name.endswith("-info")
        ]
        yield from (
            Path(folder, name)
            for name in names
            if name not in (".git", "PKG-INFO") and not name.startswith(".coverage")
        )


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("pip install 'sidecar-evaluator[tensorflow]'", True),
        ("pip3 install -U sidecar_evaluator", True),
        ("python -m pip install --quiet sidecar-evaluator==1.2", True),
        ('dependencies = ["sidecar-evaluator>=1"]', True),
        ("https://pypi.org/project/sidecar-evaluator/", True),
        ("pip install '.[tensorflow]'", False),
        ("pip install /srv/sidecar-evaluator/dist/sidecar_evaluator-1.0-py3-none-any.whl", False),
        ("pip install 'sidecar-evaluator[gpu] @ file:///srv/sidecar.whl'", False),
        ("git clone <this repository> sidecar-evaluator && cd sidecar-evaluator", False),
        ("docker build --tag sidecar-evaluator:daemon .", False),
    ],
)
def test_an_installation_by_name_is_recognized(line: str, *, is_found: bool) -> None:
    """The check below can fail, and lets other uses of the name pass."""
    assert bool(BY_NAME.search(line)) is is_found


def test_no_file_installs_it_by_its_name() -> None:
    """Neither documents nor scripts nor messages of the program."""
    excused = {Path(__file__), ROOT / "tests/deploy/test_systemd.py"}  # which try that it is refused
    read = [path for path in files() if path not in excused]
    assert ROOT / "README.md" in read
    assert ROOT / "systemd/install" in read
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in read
        for line in path.read_text(errors="replace").splitlines()
        if BY_NAME.search(line)
    ]
    assert found == []


def test_the_project_names_no_place_that_is_not_ours() -> None:
    """Package metadata and image labels bear no address of something that somebody else may own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "urls" not in project
    assert "://" not in (ROOT / "deploy/Dockerfile").read_text()


def copied(where: Path, stamp: int, *, backwards: bool) -> Path:
    """A checkout of its own: the same contents; other times, another order in its folders, other permissions."""
    for path in sorted(files(), reverse=backwards):
        to = where / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
        os.utime(to, (stamp, stamp))
        if backwards:
            to.chmod(to.stat().st_mode & 0o700)
    return where


def built(checkout: Path, where: Path, *targets: str) -> dict[str, str]:
    """Build with the backend itself, which downloads nothing: name of the file ▶ its SHA-256."""
    environ = {name: value for name, value in os.environ.items() if name not in ("SOURCE_DATE_EPOCH", "BUILD_VERSION")}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", where]
    done = subprocess.run(
        [*command, *(word for target in targets for word in ("--target", target))],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in where.iterdir()}


@pytest.fixture(scope="module")
def twice(tmp_path_factory) -> tuple[dict[str, str], dict[str, str], Path]:
    """Hashes of sdist and wheel of two checkouts, and the folder with the first pair."""
    folder = tmp_path_factory.mktemp("built")
    first = copied(folder / "first", 1_700_000_000, backwards=False)
    second = copied(folder / "second", 1_750_000_000, backwards=True)
    one, other = (built(each, folder / f"dist-{each.name}", "sdist", "wheel") for each in (first, second))
    return one, other, folder / "dist-first"


def test_the_same_source_gives_the_same_bytes(twice) -> None:
    """Sdist and wheel depend on contents alone: not on file times, the order of folders, nor who built them."""
    one, other, _ = twice
    assert sorted(name.rpartition(".")[2] for name in one) == ["gz", "whl"]
    assert one == other


def test_the_sdist_gives_the_same_wheel(twice, tmp_path) -> None:
    """It holds all that a build needs."""
    one, _, dist = twice
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (wheel,) = built(source, tmp_path / "dist", "wheel").items()
    assert wheel in one.items()


def test_the_sdist_is_the_repository(twice) -> None:
    """All of it: tests, units, manifests, dashboards; nothing else but its metadata."""
    _, _, dist = twice
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert inside == {str(path.relative_to(ROOT)) for path in files()} | {"PKG-INFO"}


def test_the_wheel_is_the_package(twice) -> None:
    """The package, its license, the marker that it is typed, and the man page; no tests."""
    _, _, dist = twice
    (wheel,) = dist.glob("*.whl")
    inside, info = set(zipfile.ZipFile(wheel).namelist()), f"{wheel.name.partition('-py3')[0]}.dist-info"
    data = info.replace(".dist-info", ".data")
    assert {name.partition("/")[0] for name in inside} == {"sidecar", info, data}
    assert [name for name in inside if name.startswith(data)] == [f"{data}/data/share/man/man1/sidecar.1"]
    assert "sidecar/py.typed" in inside
    assert f"{info}/licenses/LICENSE" in inside
    modules = {str(path.relative_to(ROOT)) for path in files() if path.is_relative_to(ROOT / "sidecar")}
    assert {name for name in inside if name.startswith("sidecar/")} == modules


def told_by(wheel: Path, where: Path) -> tuple[str, str]:
    """Unpack a wheel; return the version that its package tells, and the digest of the code that makes numbers."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(where)
    done = subprocess.run(
        [sys.executable, "-c", "import sidecar; print(sidecar.__version__)"],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), digest_of(where / "sidecar")


def test_a_clone_an_archive_and_an_sdist_can_be_built(tmp_path: Path) -> None:
    """Each wheel tells the commit, and its nodes evaluate together with those of the clone."""
    clone = copied(tmp_path / "clone", 1_700_000_000, backwards=False)
    (archive := tmp_path / "archive").mkdir()
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgSign=false"]
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["commit", "--quiet", "--message", "all of it"],
        ["archive", "--output", str(tmp_path / "archive.tar"), "HEAD"],
    ):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:8]
    with tarfile.open(tmp_path / "archive.tar") as packed:
        packed.extractall(archive, filter="data")
    of_clone = built(clone, tmp_path / "dist-clone", "sdist", "wheel")
    built(archive, tmp_path / "dist-archive", "wheel")
    (sdist,) = (tmp_path / "dist-clone").glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "sdist", filter="data")
    (source,) = (tmp_path / "sdist").iterdir()
    (of_sdist,) = built(source, tmp_path / "dist-sdist", "wheel").items()
    assert of_sdist in of_clone.items()
    told = {}
    for name in ("clone", "archive", "sdist"):
        (wheel,) = (tmp_path / f"dist-{name}").glob("*.whl")
        told[name] = told_by(wheel, tmp_path / f"unpacked-{name}")
        assert wheel.name == f"sidecar_evaluator-{told[name][0]}-py3-none-any.whl"
    versions = {"clone": f"{NEXT}.dev1+g{commit}", "archive": f"{NEXT}.dev0+g{commit}"}
    versions["sdist"] = versions["clone"]
    assert told == {name: (version, source_digest()) for name, version in versions.items()}


def test_a_build_can_be_given_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is built without history."""
    source = copied(tmp_path / "source", 1_700_000_000, backwards=False)
    monkeypatch.setenv("BUILD_VERSION", "7.8.9")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", tmp_path / "dist", "--target", "wheel"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert told_by(wheel, tmp_path / "unpacked") == ("7.8.9", source_digest())
