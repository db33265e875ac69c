"""Plain values next to weights are built, and nothing that a file calls, imports or opens."""

import argparse
import collections
import datetime as dt
import decimal
import fractions
import http
import pathlib
import pickle
import re
import types
import uuid
import zipfile

import numpy as np
import pytest

from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def loaded(content, tmp_path, **options):
    """A saved content, as a worker loads it."""
    import torch

    from sidecar.evaluation.backends.torch.weight_files import load

    torch.save(content, tmp_path / "m.pt", **options)
    return load(str(tmp_path / "m.pt")).content


NOW = dt.datetime.now(dt.UTC)
EQUAL = {
    "float64": np.float64(1.5),
    "bool": np.bool_(True),
    "text": np.str_("ab"),
    "complex": np.complex64(1 + 2j),
    "big endian": np.array([1.5, 2.5], ">f8"),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "texts": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]),
    "empty": np.zeros((0, 3), np.int8),
    "no dimension": np.array(5),
    "objects": np.array(["a", None, 3], object),
    "records": np.array([(1.5, 2)], [("a", "f4"), ("b", ">i8")]),
    "nested records": np.zeros(2, [("a", [("x", "f4", (2, 2))])]),
    "record": np.array([(1.5, 2)], [("a", "f4"), ("b", "i8")])[0],
    "date": np.datetime64("2020-01-01T05", "h"),
    "dates": np.array(["2020-01-01"], "M8[25s]"),
    "duration": np.timedelta64(3, "ms"),
    "ordered": collections.OrderedDict(a=1, b=[2]),
    "namespace": argparse.Namespace(lr=0.1, model="net", inner=argparse.Namespace(a=1)),
    "simple namespace": types.SimpleNamespace(a=1),
    "path": pathlib.PurePosixPath("/a/b"),
    "datetime": NOW,
    "day": NOW.date(),
    "time": NOW.time(),
    "delta": dt.timedelta(days=1),
    "fraction": fractions.Fraction(1, 3),
    "decimal": decimal.Decimal("1.5"),
    "enum": http.HTTPStatus.OK,
    "flag": re.IGNORECASE | re.DOTALL,
    "frozen": frozenset({1, (2, "a")}),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "counter": collections.Counter("aab"),
    "long": 10**30,
}


@pytest.mark.parametrize("name", EQUAL)
def test_values(tmp_path, name):
    """They are equal to what was saved."""
    value = EQUAL[name]
    found = loaded({"step": 5, "value": value, "again": [value]}, tmp_path)
    if isinstance(value, np.ndarray | np.generic):
        assert found["value"].dtype.newbyteorder("=") == value.dtype.newbyteorder("=")
        assert found["value"].shape == value.shape
        assert np.array_equal(found["value"], value)
    else:
        assert found["value"] == value
    assert str(found["again"][0]) == str(found["value"])


@pytest.mark.parametrize(
    "value",
    [
        np.dtype("float32"),
        np.dtype([("a", "f4")]),
        np.float32,
        float,
        pathlib.Path("a"),
        uuid.uuid4(),
        collections.deque([1], 3),
        range(3),
        slice(1),
        np.random.default_rng(0),
        np.random.RandomState(0),
        ...,
    ],
)
def test_other_values_do_not_matter(tmp_path, value):
    """The weights next to them are read."""
    assert loaded({"value": value, "step": 5}, tmp_path)["step"] == 5


def test_former_names_of_numpy(tmp_path):
    """Files of numpy 1 say numpy.core; those of numpy 2 say numpy._core."""
    import torch

    from sidecar.evaluation.backends.torch.weight_files import load

    torch.save({"a": np.arange(3.0), "b": np.float32(2)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as old, zipfile.ZipFile(tmp_path / "n.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"numpy._core", b"numpy.core"))
    found = load(str(tmp_path / "n.pt")).content
    assert found["a"].tolist() == [0.0, 1.0, 2.0]
    assert found["b"] == 2.0


def test_permissions_of_the_task_stay_as_they_are(tmp_path):
    """A task may have allowed some of the names; classes of numpy and substitutes are not mixed."""
    import torch

    real = [np._core.multiarray.scalar, np.dtype, argparse.Namespace, (dict, "a.b")]
    before = set(torch.serialization.get_safe_globals())
    with torch.serialization.safe_globals(real):
        found = loaded({"a": np.float64(1.5), "n": argparse.Namespace(x=1), "e": http.HTTPStatus.OK}, tmp_path)
        assert found["a"] == 1.5
        assert type(found["n"]) is argparse.Namespace
        assert set(torch.serialization.get_safe_globals()) == before | set(real)
    loaded({"a": np.float64(1.5)}, tmp_path)
    assert set(torch.serialization.get_safe_globals()) == before


class Call:
    """Is pickled as a call with chosen arguments, and with a state."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


def array(shape, dtype, content, **more):
    return Call(
        np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, shape, dtype, False, content), **more
    )


ATTACKS = {
    "too little content": array((10**9,), np.dtype("f8"), b"12345678"),
    "a negative size": array((-1,), np.dtype("f8"), b""),
    "text as content": array((1,), np.dtype("f8"), "12345678"),
    "bytes as objects": array((1,), np.dtype("O"), b"12345678"),
    "objects as numbers": array((1,), np.dtype("f8"), [1]),
    "objects in records": array((1,), np.dtype([("a", "O")]), b"12345678"),
    "no type": array((1,), "f8", b"12345678"),
    "another class": Call(np._core.multiarray._reconstruct, np.matrix, (0,), b"b"),
    "a scalar of objects": Call(np._core.multiarray.scalar, np.dtype([("a", "O")]), b"12345678"),
    "a scalar that is too long": Call(np._core.multiarray.scalar, np.dtype("f8"), b"123456789"),
    "an unknown type": Call(np.dtype, "f8,O"),
    "a type of fields": Call(np.dtype, {"names": ["a"], "formats": ["O"]}),
    "offsets outside": Call(
        np.dtype, "V4", False, True, state=(3, "|", None, ("a",), {"a": (np.dtype("f8"), -8)}, 4, 1, 0)
    ),
    "a short state": Call(np.dtype, "f8", False, True, state=(3, "<")),
    "a large exponent": Call(fractions.Fraction, "1e999999999"),
    "a class is called": Call(list, range(10)),
    "a large set": Call(frozenset, range(10)),
    "a member that is none": Call(http.HTTPStatus, 5),
    "a flag that is none": Call(re.RegexFlag, 1 << 200),
    "attributes of a path": Call(pathlib.PurePosixPath, "a", state={"a": 1}),
    "a call of float": Call(float, "1"),
    "attributes that are no texts": Call(types.SimpleNamespace, state={5: 1}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_arguments_that_are_never_saved(tmp_path, name):
    """One sentence that names the file; no memory is taken for what the file only claims."""
    with pytest.raises(EvaluationError) as caught:
        loaded({"x": ATTACKS[name]}, tmp_path)
    assert caught.value.kind == "mismatch"
    assert "m.pt" in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_types_of_the_process_stay_as_they_are(tmp_path):
    """A state for `numpy.dtype` would change the type that the whole process uses."""
    state = (3, ">", None, None, None, -1, -1, 0)
    found = loaded({"x": array((1,), Call(np.dtype, "f8", False, False, state=state), b"\0" * 7 + b"\1")}, tmp_path)
    assert found["x"].tolist() == [5e-324]
    assert np.dtype("f8").isnative
    with pytest.raises(EvaluationError):
        loaded({"x": Call(np.dtypes.Float64DType, state=state)}, tmp_path)
    assert np.dtype("f8").isnative


def test_nothing_is_imported_for_a_file(tmp_path):
    """An enum of a module that is not in memory is refused by its name, as any other class."""
    import sys

    import torch

    from sidecar.evaluation.backends.torch.weight_files import load

    (absent,) = {"tkinter", "antigravity"} - sys.modules.keys() - {"tkinter"}
    torch.save({"x": http.HTTPStatus.OK}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as old, zipfile.ZipFile(tmp_path / "n.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"chttp\nHTTPStatus", f"c{absent}\nThing".encode()))
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / "n.pt"))
    assert "antigravity.Thing" in str(caught.value)
    assert absent not in sys.modules


def test_all_names_are_told_at_once(tmp_path, monkeypatch):
    """Ten classes of the user: one round, with one line that can be pasted."""
    import sys

    import torch

    module = types.ModuleType("words_of_user")
    for number in range(10):
        kind = type(f"Word{number}", (), {"__module__": module.__name__})
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    content = {
        "words": [getattr(module, f"Word{number}")() for number in range(10)],
        "metric": np.float64(1.0),
        "deep": [collections.UserDict(a=np.arange(3))],
    }
    with pytest.raises(EvaluationError) as caught:
        loaded(content, tmp_path)
    message = str(caught.value)
    assert "and 6 more" in message
    try:
        exec(message.partition("task's file: ")[2], {})
        assert len(loaded(content, tmp_path)["words"]) == 10
    finally:
        torch.serialization.clear_safe_globals()


def protocol_4(path):
    import torch

    torch.save({"a": torch.ones(2)}, path, pickle_protocol=4)


def legacy(path):
    import torch

    torch.save({"a": torch.ones(2), "w": Call(print, 1)}, path, _use_new_zipfile_serialization=False)


def legacy_cut_to(share):
    """Make a writer of such a file that ends in the middle, in its pickles or in the values of its tensors."""

    def write(path):
        import torch

        torch.save({"a": torch.ones(2000), "n": [1.5] * 200}, path, _use_new_zipfile_serialization=False)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return write


def script(path):
    import torch

    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def exported(path):
    import torch

    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path)


def package(path):
    import torch

    with torch.package.PackageExporter(path) as writer:
        writer.save_pickle("a", "b.pkl", {"x": torch.ones(2)})


def cut_off(path):
    import torch

    torch.save({"a": torch.ones(2000)}, path)
    path.write_bytes(path.read_bytes()[:-500])


def distributed(path):
    import torch

    torch.save({"a": Call(fractions.Fraction, 2)}, path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content.replace(b"cfractions\nFraction", b"ctorch.distributed.tensor\nDTensor"))


def tar(path):
    import tarfile

    path.with_name("sys").write_text("1")
    with tarfile.open(path, "w") as archive:
        archive.add(path.with_name("sys"), "sys")


FILES = {
    "protocol 4": (protocol_4, "pickle_protocol"),
    "legacy": (legacy, "print"),
    **{f"legacy to {share}": (legacy_cut_to(share), "copy or save it again") for share in (0.001, 0.01, 0.1, 0.9)},
    "TorchScript": (script, "TorchScript"),
    "torch.export": (exported, "torch.export"),
    "torch.package": (package, "torch.package"),
    "cut off": (cut_off, "cut off"),
    "DTensor": (distributed, "full_state_dict"),
    "tar": (tar, "tar archive"),
    "empty": (lambda path: path.write_bytes(b""), "empty"),
    "web page": (lambda path: path.write_text("\n<!DOCTYPE html><html>404</html>"), "web page"),
    "pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid 5"), "git lfs pull"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b" + bytes(99)), "gzip"),
    "numpy": (lambda path: np.save(path.open("wb"), np.ones(3)), "numpy"),
    "npz": (lambda path: np.savez(path.open("wb"), np.ones(3)), "numpy"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": [1, 2]})), "Task(restore=…)"),
    "text": (lambda path: path.write_text("weights"), "Task(restore=…)"),
    "zip": (lambda path: zipfile.ZipFile(path, "w").writestr("a", "b"), "zip archive"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_state_dicts(tmp_path, name):
    """One sentence with the remedy."""
    from sidecar.evaluation.backends.torch.weight_files import load

    write, reason = FILES[name]
    write(tmp_path / "m.pt")
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / "m.pt"))
    message = str(caught.value)
    assert reason in message
    assert caught.value.kind == "mismatch"
    assert "\n" not in message
    assert "weights_only" not in message


def test_the_format_before_torch_1_6(tmp_path):
    """A file of it that `checkpoint_pattern` names is read."""
    import torch

    found = loaded({"a": torch.arange(3), "b": np.float64(2)}, tmp_path, _use_new_zipfile_serialization=False)
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"] == 2.0


@pytest.mark.parametrize("name", ["m.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "content", [b"", b"12", b"\5\0\0\0\0\0\0\0{", b"<html>", b'{"weight_map": 5}', b'{"weight_map": {"a": 5}}', b"[]"]
)
def test_other_files_that_are_damaged(tmp_path, name, content):
    """One sentence that names the file."""
    from sidecar.evaluation.backends.torch.weight_files import load

    (tmp_path / name).write_bytes(content)
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / name))
    assert caught.value.kind == "mismatch"
    assert name in str(caught.value)
