"""HDF5 files that point elsewhere, loop or are damaged are the file's fault, and known before Keras sees them."""

import os
import signal
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from sidecar.evaluation import hdf5
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

SECRET = np.full(128, 7.25, "float32")


@pytest.fixture
def outside(tmp_path):
    """Files of somebody else: values as bytes, and as HDF5."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.bin").write_bytes(SECRET.tobytes())
    with h5py.File(folder / "secret.h5", "w") as file:
        file["x"] = SECRET
    return folder


def external_storage(file, outside):
    """Values that lie in any file."""
    file.create_dataset("a/b", (128,), "float32", external=[(str(outside / "secret.bin"), 0, 512)])
    return "/a/b", "secret.bin"


def external_link(file, outside):
    """A name of an object in another file."""
    file["a/b"] = h5py.ExternalLink(str(outside / "secret.h5"), "/x")
    return "/a/b", "secret.h5"


def soft_link(file, _outside):
    """A name of a name."""
    file["a/x"] = SECRET
    file["a/b"] = h5py.SoftLink("/a/x")
    return "/a/b", "/a/x"


def dangling_link(file, _outside):
    """A name of itself."""
    file["b"] = h5py.SoftLink("/b")
    return "/b", "/b"


def virtual(file, outside):
    """Values of another file's data set."""
    layout = h5py.VirtualLayout((128,), "float32")
    layout[:] = h5py.VirtualSource(str(outside / "secret.h5"), "x", (128,))
    file.create_virtual_dataset("a/b", layout)
    return "/a/b", "secret.h5"


def virtual_without_end(file, outside):
    """The shape of such a one is that of its source, which is opened to know it."""
    layout = h5py.VirtualLayout((128,), "float32", maxshape=(None,))
    source = h5py.VirtualSource(str(outside / "secret.h5"), "x", (128,), maxshape=(None,))
    layout[: h5py.h5s.UNLIMITED :] = source[: h5py.h5s.UNLIMITED :]
    file.create_virtual_dataset("a/b", layout)
    return "/a/b", "secret.h5"


def a_terabyte(file, _outside):
    """Values that are not there."""
    file.create_dataset("a/b", (1 << 38,), "float32", chunks=(1 << 20,))
    return "/a/b", "1099511627776 bytes"


def too_deep(file, _outside):
    """Nest groups more deeply than the reader allows."""
    file.create_group("/".join("g" * (hdf5.MAX_DEPTH + 1)))
    return "/g/g/g", "deeper"


TRICKS = [
    *(external_storage, external_link, soft_link, dangling_link, virtual, virtual_without_end),
    *(a_terabyte, too_deep),
]


def refused(path, check=hdf5.require_self_contained):
    with pytest.raises(EvaluationError) as caught:
        check(str(path))
    return caught.value.kind, str(caught.value)


def put(path: Path, content: Path, member="model.weights.h5"):
    """Let HDF5 be a member of an archive, or of a file's shards."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
            if member != "model.weights.h5":
                with h5py.File(path.with_suffix(".h5"), "w") as file:
                    file["x"] = SECRET
                archive.write(path.with_suffix(".h5"), "model.weights.h5")
            archive.write(content, member)
    elif path.suffix == ".json":
        path.write_text("{}")
        with h5py.File(path.with_name("m_00000.weights.h5"), "w") as file:
            file["x"] = SECRET
        content.rename(path.with_name("m_00001.weights.h5"))
    else:
        content.rename(path)


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.weights.json", "m.keras", "asset"])
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.drawn(10)
def test_what_does_not_lie_in_the_file_is_refused(trick, name, outside, tmp_path):
    """In each kind of file; one sentence says which file, what in it, and where it points."""
    with h5py.File(tmp_path / "content", "w") as file:
        file["plain"] = SECRET
        inside, target = trick(file, outside)
    if name == "asset":
        name = "m.keras"
        put(tmp_path / name, tmp_path / "content", "assets/layer/any")
    else:
        put(tmp_path / name, tmp_path / "content")
    kind, message = refused(tmp_path / name)
    assert kind == "corrupt"
    assert str(tmp_path) in message
    assert inside in message
    assert target in message
    assert "\n" not in message


def test_a_member_that_is_compressed_is_looked_at_too(outside, tmp_path):
    """Keras compresses none, and reads those that are."""
    with h5py.File(tmp_path / "content", "w") as file:
        external_link(file, outside)
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "content", "model.weights.h5")
    assert "an external link" in refused(tmp_path / "m.keras")[1]


@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_loops_and_second_names_end(userblock, tmp_path):
    """A group within itself, and a data set of two names, lie in the file; each is looked at once."""
    with h5py.File(tmp_path / "m.h5", "w", userblock_size=userblock) as file:
        group = file.create_group("a/b")
        group["again"] = file
        group["itself"] = group
        file["a/x"] = SECRET
        group["x"] = file["a/x"]
        file["empty"] = np.zeros((0, 3))
        file["nothing"] = h5py.Empty("f4")
        file["type"] = np.dtype("f4")
        file["a"].attrs["names"] = ["one", "two"]
    for check in (hdf5.require_self_contained, hdf5.require_readable):
        check(str(tmp_path / "m.h5"))


def test_the_number_of_objects_is_bounded(tmp_path, monkeypatch):
    """Show names of links and of attributes."""
    monkeypatch.setattr(hdf5, "MAX_OBJECTS", 20)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for number in range(21):
            file.attrs[str(number)] = number
    assert "more than 20" in refused(tmp_path / "m.h5")[1]
    with h5py.File(tmp_path / "n.h5", "w") as file:
        for number in range(21):
            file.create_group(str(number))
    assert "more than 20" in refused(tmp_path / "n.h5")[1]


def test_names_that_steer_a_terminal_are_shown_as_they_are_written(outside, tmp_path):
    """A file may hold any names."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file[b"\x1b[2J\xff"] = h5py.ExternalLink(str(outside / "secret.h5"), "/x\n")
    message = refused(tmp_path / "m.h5")[1]
    assert message.isprintable()


def test_what_is_gone_or_out_of_reach_is_not_damaged(tmp_path):
    """Nor is what h5py cannot open for want of a number of its own."""
    for name in ("m.h5", "m.keras", "m.weights.json"):
        assert refused(tmp_path / "gone" / name)[0] == "vanished"
    (tmp_path / "m.h5").write_bytes(b"")
    assert hdf5.read_failure(str(tmp_path / "m.h5"), PermissionError(13, "Permission denied")).kind == "storage"
    said = "Can't synchronously read data (file read failed: errno = 5, error message = 'Input/output error')"
    assert hdf5.read_failure(str(tmp_path / "m.h5"), OSError(said)).kind == "storage"


def test_a_child_that_is_killed_is_not_the_files_fault():
    """By somebody, or for want of memory; what it does to itself is."""
    from sidecar.evaluation import hdf5
    from sidecar.evaluation.failures import EvaluationError

    ends = {signal.SIGKILL: "out_of_memory", signal.SIGSEGV: "corrupt", signal.SIGABRT: "corrupt"}
    for number, kind in ends.items():
        with pytest.raises(EvaluationError) as caught:
            hdf5.check_isolated("m.h5", lambda number=number: os.kill(os.getpid(), number), cpu_seconds=5)
        assert caught.value.kind == kind
    with pytest.raises(EvaluationError, match="CPU time limit") as caught:
        hdf5.check_isolated("m.h5", lambda: sum(iter(int, 1)), cpu_seconds=1)
    assert caught.value.kind == "corrupt"
    hdf5.check_isolated("m.h5", lambda: None, cpu_seconds=1)
