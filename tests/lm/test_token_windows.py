"""Texts and packed tokens as they lie on the disk, and windows in which each token is predicted once."""

import gzip
import json
import struct

import numpy as np
import pytest

from sidecar.evaluation.failures import EvaluationError
from sidecar.lm.token_windows import Documents, paths_of, read_packed, read_texts, windows_of


@pytest.mark.parametrize("prefix", [None, 7])
@pytest.mark.parametrize(("length", "stride"), [(4, 4), (4, 1), (5, 3), (1, 1), (100, 50)])
def test_each_token_is_predicted_once_with_context(prefix, length, stride):
    """Inputs are at most as long as the window; after the first window, there is the context that the stride leaves."""
    sizes = [11, 1, 0, 4, 5, 23]
    documents = Documents([np.arange(size) for size in sizes], prefix=prefix)
    windows = windows_of(documents, length, stride)
    lengths = [window.end - window.begin for window in windows]
    assert lengths == sorted(lengths, reverse=True)
    first = 0 if prefix is not None else 1
    for number, size in enumerate(sizes):
        own = sorted((each for each in windows if each.document == number), key=lambda each: each.first)
        assert [token for each in own for token in range(each.first, each.end)] == list(range(first, size))
        for each in own:
            assert each.end - 1 - each.begin <= length
            assert each.begin <= max(each.first - 1 - (length - stride), first - 1)


def test_windows_of_the_harness():
    """With the stride of the window, they are those of `lm_eval.utils.get_rolling_token_windows`, in its docstring."""
    windows = windows_of(Documents([np.arange(10)], prefix=0), 4, 4)
    assert sorted((each.begin, each.first, each.end) for each in windows) == [(-1, 0, 4), (3, 4, 8), (5, 8, 10)]


def write(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_texts_of_several_files(tmp_path):
    """Words and bytes are counted as the harness counts them; compressed files are read, too."""
    write(tmp_path / "b.jsonl.gz", [{"text": "é  b\n", "domain": 3}])
    write(tmp_path / "a.jsonl", [{"text": "a b", "domain": "web"}, {"text": "", "domain": "web"}])
    paths = paths_of(str(tmp_path / "*.jsonl*"), "set")
    found = read_texts(paths, "text", "domain", lambda text: [ord(each) for each in text], 0)
    assert [tokens.tolist() for tokens in found.tokens] == [[97, 32, 98], [], [233, 32, 32, 98, 10]]
    assert (found.words, found.sizes, found.slices) == ((2, 1, 3), (3, 0, 6), ("web", "web", "3"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": 3}\n', "line 1.*no text as 'text'"),
        ('{"text": "a"}\n\n{"body": "b"}\n', "line 3.*no 'text', but body"),
        ("[1]\n", "line 1 is no object"),
        ("{\n", "line 1 is not JSON"),
    ],
)
def test_other_lines_are_told(tmp_path, content, words):
    """With the file and the line."""
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(EvaluationError, match=rf"a\.jsonl, {words}"):
        read_texts([tmp_path / "a.jsonl"], "text", None, lambda _: [], None)
    with pytest.raises(EvaluationError, match=r"no file .*b\.jsonl"):
        paths_of(str(tmp_path / "b.jsonl"), "set")


@pytest.mark.parametrize("kind", ["nanogpt", "wide", "npy", "megatron"])
def test_packed_tokens(tmp_path, kind):
    """As nanoGPT, numpy and Megatron-LM write them: the type follows from the file, or from an argument."""
    expected, dtype = [3, 50256, 7, 1], "uint16"
    path = tmp_path / ("val.npy" if kind == "npy" else "val.bin")
    if kind == "npy":
        np.save(path, np.array(expected, np.uint32))
    elif kind == "megatron":
        np.array(expected, np.int32).tofile(path)
        head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 1, 2)
        path.with_suffix(".idx").write_bytes(head + np.array([4], np.int32).tobytes())
    else:
        dtype = "uint16" if kind == "nanogpt" else "uint32"
        np.array(expected, dtype).tofile(path)
    (tokens,) = read_packed([path], dtype).tokens
    assert tokens.tolist() == expected


def test_other_bytes_are_no_tokens(tmp_path):
    """A size that is no multiple, an index of something else, an array of floats."""
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "b.bin").write_bytes(b"abcd")
    (tmp_path / "b.idx").write_bytes(b"TNTIDX")
    np.save(tmp_path / "c.npy", np.zeros(3))
    for name, words in (
        ("a.bin", "3 bytes, no tokens of uint16.*dtype"),
        ("b.bin", r"b\.idx is not an index"),
        ("c.npy", "float64"),
    ):
        with pytest.raises(EvaluationError, match=words):
            read_packed([tmp_path / name], "uint16")
