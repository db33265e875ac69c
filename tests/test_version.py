"""The version: of a clone with and without tags, of an archive, and of sources alone."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sidecar.version import FALLBACK, NEXT, of_archive, of_clone, version

ROOT = Path(__file__).parents[1]
COMMIT = "4a3370ab5d1c6b9f0e3d2c1b0a9f8e7d6c5b4a39"


class Clone:
    """A repository that holds the file and its attributes."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(ROOT / "sidecar/system", folder / "sidecar/system")
        (folder / "sidecar/__init__.py").touch()
        for name in (".gitattributes", "sidecar/version.py"):
            shutil.copyfile(ROOT / name, folder / name)
        self.git("init", "--quiet")
        self.git("add", ".")

    def git(self, *arguments):
        """Return what git prints."""
        names = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgSign=false"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", self.folder, *names, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, times=1):
        """Commit, and return the digits of the last commit."""
        for _ in range(times):
            self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")[:8]

    def told(self, folder=None):
        """Return what the file tells in a process of its own."""
        command = [sys.executable, "-c", "from sidecar.version import version; print(version())"]
        place = str(folder or self.folder)
        environment = os.environ | {
            "PYTHONPATH": place,
            "GIT_DIR": "/nonexistent",
        }  # as in a hook of another repository
        return subprocess.run(
            command, cwd=place, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def archive(self, folder):
        """Unpack what `git archive` makes."""
        self.git("archive", "--output", str(folder / "archive.tar"), "HEAD")
        with tarfile.open(folder / "archive.tar") as archive:
            archive.extractall(folder / "unpacked", filter="data")
        return folder / "unpacked"


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path / "clone")


def test_a_clone_tells_the_commits_since_the_newest_tag(clone):
    """Before the first tag they count up to the first release, afterwards to the one after the tag."""
    commit = clone.commit(3)
    assert clone.told() == of_clone(clone.folder) == f"{NEXT}.dev3+g{commit}"
    clone.git("tag", "v0.2.0")
    assert clone.told() == "0.2.0"
    commit = clone.commit(2)
    assert clone.told() == f"0.2.1.dev2+g{commit}"
    clone.git("tag", "--annotate", "v0.3.0rc1", "--message", "a candidate")
    assert clone.told() == "0.3.0rc1"
    commit = clone.commit()
    assert clone.told() == f"0.3.0rc2.dev1+g{commit}"


def test_a_changed_file_shows(clone):
    """A version that names a commit is true, or says that it is not all."""
    commit = clone.commit()
    clone.git("tag", "v0.2.0")
    with (clone.folder / "sidecar/version.py").open("a") as file:
        file.write("# changed\n")
    assert clone.told() == f"0.2.1.dev0+g{commit}.dirty"


def test_other_tags_do_not_count(clone):
    """Only `v` and a digit begin the tag of a release."""
    commit = clone.commit()
    clone.git("tag", "verified")
    clone.git("tag", "2.0")
    assert clone.told() == f"{NEXT}.dev1+g{commit}"


def test_an_archive_tells_its_commit(clone, tmp_path):
    """`git archive` writes it into the file; the number of commits is known from the first tag on."""
    commit = clone.commit(2)
    (first := tmp_path / "1").mkdir()
    assert clone.told(clone.archive(first)) == f"{NEXT}.dev0+g{commit}"
    clone.git("tag", "v0.2.0")
    (second := tmp_path / "2").mkdir()
    assert clone.told(clone.archive(second)) == "0.2.0"
    commit = clone.commit()
    (third := tmp_path / "3").mkdir()
    assert clone.told(clone.archive(third)) == f"0.2.1.dev1+g{commit}"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (COMMIT, f"{FALLBACK}+g4a3370ab"),
        (f"{COMMIT} ", f"{FALLBACK}+g4a3370ab"),
        (f"{COMMIT} v1.2.3", "1.2.3"),
        (f"{COMMIT} v1.2.3-14-g4a3370ab", "1.2.4.dev14+g4a3370ab"),
        (f"{COMMIT} %(describe:tags=true,match=v[0-9]*)", f"{FALLBACK}+g4a3370ab"),
        ("", FALLBACK),
        ("something else", FALLBACK),
    ],
    ids=["commit", "no tag", "tag", "after a tag", "an old git", "nothing", "nonsense"],
)
def test_what_git_wrote_into_an_archive_is_read(written, told):
    """Git before 2.32 knows no description there and leaves the text as it is."""
    assert of_archive(written) == told


def test_sources_alone_have_a_version(clone, tmp_path):
    """Version a copy without git's data, and a clone without commits or with a `.git` that is none."""
    assert of_clone(clone.folder) == FALLBACK
    (tmp_path / "copy").mkdir()
    shutil.copytree(clone.folder / "sidecar", tmp_path / "copy/sidecar")
    assert clone.told(tmp_path / "copy") == FALLBACK
    (tmp_path / "copy/.git").write_text("gitdir: nowhere\n")
    assert clone.told(tmp_path / "copy") == FALLBACK


def test_no_git_is_needed(clone, monkeypatch):
    """A machine without git runs a clone, too."""
    clone.commit()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert of_clone(clone.folder) == FALLBACK


def test_the_former_release_differs():
    """It compares the text alone, so no later version may read `0.1.0`."""
    assert version() != "0.1.0"
    assert not FALLBACK.startswith("0.1.")


def test_the_public_name_is_the_version():
    """`sidecar.__version__` is asked for by users' programs."""
    import sidecar

    assert sidecar.__version__ == version()
    with pytest.raises(AttributeError, match="nonsense"):
        sidecar.nonsense  # noqa: B018
