"""The recorded checkpoints are those that today's writers write."""

import contextlib
from pathlib import Path

import pytest
from checkpoints.kinds import KINDS, LIGHTNING_FOLDERS, NEVER_WHOLE, TORCH_KINDS
from checkpoints.recorded import WROTE, record

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import inspect_one
from sidecar.errors import CheckpointError

pytestmark = [pytest.mark.tensorflow, pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="session")
def again(real_writer, torch_writer, tmp_path_factory):
    """All of it, recorded again by the writers that are installed."""
    return record(tmp_path_factory.mktemp("again"), real_writer, torch_writer)


def files(root: Path) -> list[str]:
    """Return the names of all files in a folder."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in names if name != WROTE)


def inspected(folder: Path) -> list[tuple]:
    """Return name, format, step and the files of every checkpoint in a folder."""
    found = []
    for kind, format_ in FORMATS.items():
        for candidate in format_.candidates(folder, list_files(folder)):
            with contextlib.suppress(CheckpointError):
                one = format_.inspect(folder, candidate.name)
                found.append((candidate.name, kind, one.step, one.files))
    return found


def test_the_same_files_are_written(recorded, again):
    """Under the same names: `python tests/checkpoints/recorded.py` records those of other versions."""
    assert files(again.root) == files(recorded.root)
    assert again.wrote.keys() == recorded.wrote.keys()


@pytest.mark.parametrize("kind", KINDS + TORCH_KINDS)
def test_a_kind_has_the_same_structure(recorded, again, kind):
    """Format, step and files are those of the recorded one; the values are of another training."""
    then, now = inspected(recorded.kinds / kind), inspected(again.kinds / kind)
    assert now == then
    assert len(now) == (kind not in NEVER_WHOLE)
    for name, format_, *_ in now:
        digests = {FORMATS[format_].inspect(folder / kind, name).digest for folder in (recorded.kinds, again.kinds)}
        assert len(digests) == 2, "another save has another digest"


def test_object_checkpoints_and_steps_have_the_same_structure(recorded, again):
    """Compare every function of the writer and every optimizer."""
    for name in recorded.wrote:
        assert inspected(again.objects / name) == inspected(recorded.objects / name)
    assert inspected(again.optimizers) == inspected(recorded.optimizers)
    for path in recorded.optimizers.glob("*.keras"):
        then, now = inspect_one(path), inspect_one(again.optimizers / path.name)
        assert (now.step, now.step_source) == (then.step, then.step_source)


@pytest.mark.parametrize("kind", LIGHTNING_FOLDERS)
def test_folders_of_lightning_have_the_same_structure(recorded, again, kind):
    """Names and steps, and which names are additional ones."""
    then, now = recorded.torch / kind, again.torch / kind
    assert inspected(now) == inspected(then)
    for folder in (then, now):
        assert FORMATS["torch_zip"].inspect(folder, "last.ckpt").same_as
