"""Checkpoints of real writers, recorded or live, and the collaborators that tests move by hand."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from catalogs import make_catalog
from checkpoints.recorded import Recorded, copy_recorded
from checkpoints.writer_process import TORCH_WRITER, WriterProcess, writer_process
from fakes import FakeClock, save

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.format import Candidate, Format
from sidecar.retention.pins.pin import pin


class Tally:
    """Hold what tests tried, summed up at the end of the run: a number that nobody sees may as well be zero."""

    def __init__(self) -> None:
        self.cases: dict[str, list[int]] = {}
        self.costs: list[tuple[float, int, str]] = []

    def add(self, what: str, tried: int, caught: int) -> None:
        """So many cases more of a kind."""
        total = self.cases.setdefault(what, [0, 0])
        total[0] += tried
        total[1] += caught

    def measured(self, what: str, answer: dict) -> None:
        """Return what bounded.py measured of one file."""
        self.costs.append((answer["seconds"], answer["memory"], what.replace("_", " ")))

    def lines(self) -> Iterator[str]:
        """As people read it."""
        for what, (tried, caught) in self.cases.items():
            yield f"{what}: {tried:,} tried, {caught:,} caught"
        if self.costs:
            seconds, _, slowest = max(self.costs)
            memory, largest = max((memory, what) for _, memory, what in self.costs)
            yield (
                f"files as bad as can be: {len(self.costs)} tried, at most {seconds:.1f} s ({slowest}) and "
                f"{memory / 2**20:.0f} MiB ({largest})"
            )


_TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(pytestconfig) -> Tally:
    return pytestconfig.stash.setdefault(_TALLY, Tally())


def pytest_terminal_summary(terminalreporter, config) -> None:
    if _TALLY in config.stash:
        terminalreporter.section("damaged and hostile checkpoints")
        for line in config.stash[_TALLY].lines():
            terminalreporter.line(line)


class Place:
    """A checkpoint directory with ckpt-1 and ckpt-2 and, if they are to be pinned, their pins only."""

    def __init__(self, folder, *, pinned):
        self.root, self.clock = folder / "ckpts", FakeClock()
        self.pins = self.root / ".sidecar" / "pins"
        self.pins.mkdir(parents=True)
        for step in (1, 2):
            save(self.root, step, keep=range(1, step))
        if pinned:
            for found in self.catalog().scan().found:
                pin(found, self.pins)
            for path in self.root.glob("ckpt-*"):
                path.unlink()

    def catalog(self):
        """A new one of the place."""
        return make_catalog(self.root, self.pins, quiet_seconds=0.0, corrupt_after_seconds=60.0, clock=self.clock)

    def pin(self, step):
        """The folder of a pin."""
        (folder,) = self.pins.glob(f"ckpt-{step}@*")
        return folder


@pytest.fixture(scope="session")
def real_writer() -> Iterator[WriterProcess]:
    with writer_process() as writer:
        yield writer


@pytest.fixture(scope="session")
def torch_writer() -> Iterator[WriterProcess]:
    with writer_process(TORCH_WRITER) as writer:
        yield writer


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Recorded:
    return copy_recorded(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def written(recorded) -> Path:
    """A folder for each of KINDS and TORCH_KINDS, with one checkpoint named `m-5` in it."""
    return recorded.kinds


@pytest.fixture(scope="session")
def optimizers(recorded) -> Path:
    """Files of Keras 3 and tf_keras with optimizers of many kinds."""
    return recorded.optimizers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def pins(root) -> Path:
    return root / ".sidecar" / "run" / "pins"


@pytest.fixture
def new_catalog(root, pins, clock):
    def new(**settings):
        return make_catalog(root, pins, **({"quiet_seconds": 3.0, "clock": clock} | settings))

    return new


@pytest.fixture
def put(recorded, root):
    """Copy what a real writer wrote in one of its folders, or some of it, into the checkpoint directory."""

    def copy(kind: str, pattern: str = "*") -> Path:
        for source in sorted((recorded.objects / kind).glob(pattern)):
            shutil.copy2(source, root / source.name)
        return root

    return copy


@pytest.fixture
def pinned(tmp_path):
    return Place(tmp_path, pinned=True)


@pytest.fixture
def lying(tmp_path):
    return Place(tmp_path, pinned=False)


def only(root: Path) -> tuple[Format, Candidate]:
    """The one candidate in a folder."""
    found = [(each, one) for each in FORMATS.values() for one in each.candidates(root, list_files(root))]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def checkpoint(written, root):
    """Puts one of a kind into the checkpoint directory; its format, its name, and its files."""

    def put(kind: str) -> tuple[Format, str, tuple[str, ...]]:
        shutil.copytree(written / kind, root, dirs_exist_ok=True)
        format_, candidate = only(root)
        return format_, candidate.name, format_.inspect(root, candidate.name).files

    return put


@pytest.fixture
def inspections(before_inspection) -> list[str]:
    """The names of all checkpoints that were parsed."""
    seen = []
    before_inspection(lambda _, name: seen.append(name))
    return seen


@pytest.fixture
def catalog(new_catalog):
    """A catalog that looks into some sub-folders."""

    def new(*patterns, **settings):
        return new_catalog(checkpoint_glob=tuple(patterns), **settings)

    return new
