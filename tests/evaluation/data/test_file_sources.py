"""What an eval set may be made of besides datasets and arrays: `.npz` files, TFRecord files, generators."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sidecar import EvalSet
from sidecar.data import npz, tfrecords
from sidecar.errors import TaskError
from sidecar.evaluation.data.opened_files import OpenedFiles

pytestmark = pytest.mark.tensorflow

COUNTS = (5, 0, 3, 4, 1)  # records of each file: with batches of 2, one file ends evenly, one is empty


def contents(batches):
    """Every own batch with the place of its first example."""
    batches.read(lambda: None)
    return [(first, *(each.numpy().tolist() for each in batch)) for _, first, batch in batches.own()]


def test_nothing_heavy_is_imported_before_a_source_is_called():
    """A task file names sources as lightly as it names its task."""
    code = "import sys; from sidecar.data import npz, tfrecords; npz('a', 'x'); tfrecords('b'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "tensorflow", "sidecar.data"} & set(done.stdout.split()) == {"sidecar.data"}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_what_its_arrays_are(batches, tmp_path, save):
    """The same stream to the last digit, with weights if they are named."""
    x, y, w = np.arange(30, dtype="float32").reshape(10, 3), np.arange(10), np.full(10, 0.5, "float32")
    save(tmp_path / "test.npz", x=x, labels=y, w=w)
    for names, arrays in ((("x", "labels"), (x, y)), (("x", "labels", "w"), (x, y, w))):
        found = batches(npz(tmp_path / "test.npz", *names)).read(lambda: None)
        assert found == batches(lambda arrays=arrays: arrays).read(lambda: None)


def test_npz_that_cannot_be_used(tmp_path):
    """Each mistake in one sentence that names the file, and what is there."""

    def refusal(*names, file="test.npz"):
        with pytest.raises(TaskError) as caught:
            npz(tmp_path / file, *names)()
        return str(caught.value).removeprefix("npz: ")

    path = tmp_path / "test.npz"
    assert refusal("x", "y") == f"there is no file {path}"
    np.save(tmp_path / "test.npy", np.zeros(3))
    assert refusal("x", file="test.npy").startswith(f"{tmp_path / 'test.npy'} is not a complete .npz file")
    texts = np.array(["a", None], dtype=object)
    np.savez(path, x=np.zeros(2), y=np.zeros(3), one=1, texts=texts)
    assert refusal("x", "z", "v") == f"{path} has no array 'z', 'v'; there are x, y, one, texts"
    assert refusal("x", "y") == f"arrays of {path} need equally many examples, found x 2, y 3"
    assert refusal("x", "one") == f"arrays of {path} need equally many examples, found x 2, one no"
    assert refusal("texts").startswith(f"array 'texts' of {path} cannot be read: Object arrays cannot be loaded")
    np.savez(path, x=np.arange(1000))
    whole = path.read_bytes()
    damaged = whole.replace(np.arange(500, 510).tobytes(), b"\x01" * 80)
    assert damaged != whole
    path.write_bytes(damaged)
    assert refusal("x").startswith(f"array 'x' of {path} cannot be read: Bad CRC-32")
    path.write_bytes(whole[:-30])
    assert "is not a complete .npz file" in refusal("x")
    with pytest.raises(TaskError, match=rf"{path}.*name the arrays"):
        npz(path)


@pytest.fixture
def records(digits, tmp_path):
    """Writes files of records "f0", "f1", … and returns the pattern of their names."""
    del digits
    import tensorflow as tf

    def write(counts=COUNTS, folder="data", compression=None):
        (tmp_path / folder).mkdir()
        for number, count in enumerate(counts):
            with tf.io.TFRecordWriter(str(tmp_path / folder / f"test-{number}.tfrecord"), compression) as file:
                for record in range(count):
                    file.write(f"{number}{record}".encode())
        return str(tmp_path / folder / "test-*.tfrecord")

    return write


def parse(record):
    """(x, y) of a record; the condition needs AutoGraph, as users' functions may."""
    import tensorflow as tf

    number = tf.strings.to_number(record, tf.int64)
    if number >= 30:
        number += 1000
    return number, record


def record_set(pattern, **how):
    return EvalSet(tfrecords(pattern, **how), parse)


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_records_by_batch_are_one_stream(batches, records, compression):
    """In the order of the names, also of those in a list; batches go over the ends of files, and contents are known."""
    pattern = records(compression=compression)
    whole = contents(batches(record_set(pattern, compression=compression)))
    assert [batch for _, _, batch in whole][:3] == [
        [b"00", b"01", b"02", b"03"],
        [b"04", b"20", b"21", b"22"],
        [b"30", b"31", b"32", b"33"],
    ]
    assert [place for place, *_ in whole] == [0, 4, 8, 12]
    listed = [Path(pattern).with_name(f"test-{number}.tfrecord") for number in (4, 2, 0, 1, 3)]
    made = batches(record_set(listed, compression=compression))
    assert contents(made) == whole
    stream = made.read(lambda: None)
    assert (stream.sharding, stream.batches, stream.examples) == ("batches", 4, 13)


@pytest.mark.nightly
@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("ranks", range(1, 8))
def test_records_by_file(batches, records, ranks, cache):
    """Each file is one rank's alone while they suffice; the batches are the same for any number of workers."""
    pattern = records()
    alone = contents(batches(record_set(pattern, by="file"), batch_size=2))
    assert [batch for *_, batch in alone] == [
        [b"00", b"01"],
        [b"02", b"03"],
        [b"04"],
        [b"20", b"21"],
        [b"22"],
        [b"30", b"31"],
        [b"32", b"33"],
        [b"40"],
    ]
    assert alone[5][1] == [1030, 1031]
    parts, streams = [], []
    for rank in range(ranks):
        made = batches(record_set(pattern, by="file"), batch_size=2, rank=rank, ranks=ranks, cache=cache)
        made.first()
        streams.append(made.read(lambda: None))
        parts.append(contents(made))
        assert parts[-1] == contents(made)
    found = [batch for part in parts for _, *batch in part]
    assert sorted(found) == sorted(batch for _, *batch in alone)
    if ranks > len(COUNTS):
        assert {each.sharding for each in streams} == {"batches"}
        assert len({(each.fingerprint, each.batches, each.examples) for each in streams}) == 1
        assert sum(each.own_examples for each in streams) == streams[0].examples == sum(COUNTS)
        assert [bool(part) for part in parts[:5]] == [True] * 5, "files of one batch go to different ranks"
        places = {first: x for part in parts for first, x, _ in part}
        assert [x for _, x in sorted(places.items())] == [x for _, x, _ in alone]
    else:
        assert {(each.sharding, each.examples) for each in streams} == {("files", 0)}
        assert len({each.fingerprint for each in streams}) == 1
        for rank, part in enumerate(parts):
            assert {int(batch[0][:1]) % ranks for *_, batch in part} <= {rank}
            assert {place for place, *_ in part} <= {None}


@pytest.fixture
def digit_files(digits, tmp_path):
    """The held-out digits in two files of records, and how to parse one."""
    import tensorflow as tf

    x, y = digits.held_out_arrays()
    for number, part in enumerate(np.array_split(np.arange(len(y)), 2)):
        with tf.io.TFRecordWriter(str(tmp_path / f"digits-{number}.tfrecord")) as file:
            for index in part:
                file.write(x[index].tobytes() + y[index].tobytes())

    def parse_digit(record):
        image = tf.io.decode_raw(tf.strings.substr(record, 0, 256), tf.float32)
        label = tf.io.decode_raw(tf.strings.substr(record, 256, 8), tf.int64)
        return tf.reshape(image, (8, 8, 1)), tf.reshape(label, ())

    return str(tmp_path / "digits-*.tfrecord"), parse_digit


@pytest.mark.parametrize(
    ("by", "numbers"),
    [
        ("file", (2, 3)),
        pytest.param("file", (1, 4), marks=pytest.mark.nightly),
        pytest.param("batch", (1, 2, 4), marks=pytest.mark.nightly),
    ],
)
def test_the_same_bits_for_any_number_of_workers(trained, digits, evaluate, digit_files, by, numbers):
    """By file for 1 or 2 workers, by batch for more: one result, that of a plain evaluation."""
    pattern, parse_digit = digit_files
    eval_set = EvalSet(tfrecords(pattern, by=by), parse_digit, examples=digits.HELD_OUT)
    task = digits.make(eval_sets={"test": eval_set})
    found = [evaluate(task, trained.path("model"), ranks=ranks) for ranks in numbers]
    by_file = [by == "file" and ranks <= 2 for ranks in numbers]
    assert [each.streams[0][0].sharding for each in found] == ["files" if each else "batches" for each in by_file]
    for each in found:
        assert each.hexes == found[0].hexes
        assert each.examples == {"test": digits.HELD_OUT}
    expected = trained.expected["model"]
    assert found[0]["accuracy"].value == expected["correct"] / expected["count"]
    assert found[0]["loss"].value == pytest.approx(expected["loss"], rel=1e-6)


def test_an_exact_auc_needs_to_know_how_many_there_are(trained, digits, evaluate, digit_files):
    """By file nobody knows before the end; by batch everybody does."""
    from sidecar.metrics import AUC

    pattern, parse_digit = digit_files

    def run(by):
        sets = {"test": EvalSet(tfrecords(pattern, by=by), parse_digit)}
        return evaluate(digits.make(eval_sets=sets, metrics=lambda: [AUC(positive=3)]), trained.path("model"), ranks=2)

    with pytest.raises(TaskError, match=r"'auc'.*divided by file.*BinnedAUC"):
        run("file")
    assert 0 < run("batch")["roc_auc"].value <= 1


def test_list_of_files_is_compared_not_their_folder(batches, records):
    """The same names and sizes elsewhere are the same; another name or size is not."""
    prints = []
    for folder, counts in (("a", COUNTS), ("b", COUNTS), ("c", (5, 0, 3, 4, 2)), ("d", COUNTS[:4])):
        made = batches(record_set(records(counts, folder), by="file"), batch_size=2)
        prints.append(made.read(lambda: None).fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_files_that_change_between_checkpoints(batches, records):
    """By file the list is looked at before every evaluation."""
    from sidecar.evaluation.failures import EvaluationError

    pattern = records()
    made = batches(record_set(pattern, by="file"), batch_size=2)
    assert made.read(lambda: None) == made.read(lambda: None)
    Path(pattern).with_name("test-1.tfrecord").unlink()
    with pytest.raises(EvaluationError, match=r"'test'.*files have changed"):
        made.read(lambda: None)


def test_files_of_records_that_were_replaced_are_noticed(batches, records):
    """TensorFlow opens them without Python; names and sizes are the same."""
    pattern, files = records(), OpenedFiles()
    files.install()
    with files.reading():
        contents(batches(record_set(pattern)))
    (path,) = Path(pattern).parent.glob("test-2.tfrecord")
    assert files.changed() == []
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert files.changed() == [str(path)]


@pytest.mark.parametrize("by", ["batch", "file"])
def test_files_that_cannot_be_used(refusal, records, by):
    """None, one twice, nothing in them: one sentence each."""
    pattern = records((0, 0))
    kind, message = refusal(record_set(pattern, by=by))
    assert (kind, message) == ("task_error", "eval set 'test' is empty: it has no example to evaluate")
    nowhere = pattern.replace("test", "no")
    assert refusal(record_set(nowhere, by=by))[1] == f"eval set 'test': tfrecords finds no file {nowhere}"
    first = pattern.replace("*", "0")
    assert refusal(record_set([pattern, first], by=by))[1] == f"eval set 'test': tfrecords is given {first} 2 times"
    assert "yields single examples" in refusal(record_set(pattern, by=by), batch_size=None)[1]


@pytest.mark.parametrize("by", ["batch", "file"])
def test_damaged_records(refusal, records, by):
    """The file is named, and what TensorFlow finds there; also where the compression is another one."""
    pattern = records()
    path = Path(pattern.replace("*", "3"))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[30] ^= 1
    for content, words in ((whole[:-3], "truncated record at 54"), (bytes(flipped), "corrupted record at")):
        path.write_bytes(content)
        kind, message = refusal(record_set(pattern, by=by), batch_size=2)
        assert kind == "task_error"
        assert message.startswith(f"eval set 'test': {path} cannot be read as TFRecords with compression=None: {words}")
    path.write_bytes(gzip.compress(whole))
    assert str(path) in refusal(record_set(pattern, by=by), batch_size=2)[1]
    kind, message = refusal(record_set(pattern, by=by, compression="GZIP"))
    assert f"{pattern.replace('*', '0')} cannot be read as TFRecords with compression='GZIP'" in message


def test_what_tfrecords_does_not_know():
    """A misspelt option is refused where it is written."""
    with pytest.raises(TaskError, match=r"by='files'.*'batch', 'file'"):
        tfrecords("a", by="files")
    with pytest.raises(TaskError, match=r"compression='gzip'.*'GZIP', 'ZLIB'"):
        tfrecords("a", compression="gzip")
    with pytest.raises(TaskError, match=r"tfrecords\(\[\]\)"):
        tfrecords([])


def generate(count=10):
    """Examples in a nested structure."""
    for number in range(count):
        yield {"n": np.float32([number, 1]), "word": f"word {number}"}, number % 3, 0.5


def test_generator_is_what_its_arrays_are(batches):
    """Types and shapes are the first example's; sharded and fingerprinted like any stream."""
    x = {
        "n": np.stack([np.arange(10), np.ones(10)], 1).astype("float32"),
        "word": [f"word {n}" for n in range(10)],
    }
    arrays = (x, np.arange(10) % 3, np.full(10, 0.5))
    expected = batches(lambda: arrays).read(lambda: None)
    for source in (generate, lambda: iter(list(generate())), lambda: (each for each in generate())):
        for rank in range(2):
            made = batches(source, rank=rank, ranks=2, cache=0)
            assert made.first()[0]["n"].shape == (4, 2)
            assert made.read(lambda: None).fingerprint == expected.fingerprint
            own = [[batch[0]["word"].numpy().tolist() for *_, batch in made.own()] for _ in range(2)]
            assert own[0] == own[1]
            assert own[0][0][0] == [b"word 0", b"word 4"][rank]


def test_generator_starts_anew_for_every_reading(batches):
    """Once to learn its types, then for each reading; no more where all fits into memory."""
    for cache, starts in ((1 << 20, 3), (0, 5)):
        started = []

        def source(started=started):
            started.append(1)
            yield from zip(range(10), range(10), strict=True)

        made = batches(source, cache=cache)
        made.first()
        assert contents(made) == contents(made)
        assert len(started) == starts


def test_generators_that_yield_batches(batches):
    """Then the number of examples is free, and the last batch may be short."""

    def source():
        for start in (0, 4, 8):
            numbers = np.arange(start, min(start + 4, 10))
            yield numbers, numbers

    made = batches(source, batch_size=None)
    assert [x for _, x, _ in contents(made)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert made.spec[0].shape.as_list() == [None]


def test_generator_that_shards_itself(batches):
    """It is told its shard each time."""

    def source(shard):
        return ((number, number) for number in range(10) if shard.owns(number))

    assert [x for _, x, _ in contents(batches(source, rank=1, ranks=2))] == [[1, 3, 5, 7], [9]]


def test_iterators_that_yield_everything_once_only(refusal):
    """The same iterator again, or what is made of it: found out before a number exists."""
    once = iter([(number, number) for number in range(10)])
    kind, message = refusal(lambda: once)
    assert (kind, "returns the same iterator each time it is called" in message) == ("task_error", True)
    for count in (5, 200):
        once = iter([(number, number) for number in range(count)])
        kind, message = refusal(lambda once=once: map(tuple, once))
        assert kind == "stream_differs"
        assert "let a generator start again whenever its function is called" in message


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ([], "is empty: its iterator yields no example"),
        ([([1], 0), ([1, 2], 0)], "element 1 of its iterator is (int64(2,), int64()), the first was (int64(1,)"),
        ([(0, 0), (1, 0.5)], "element 1 of its iterator is (int64(), float64()), the first was (int64(), int64())"),
        ([({"a": 1}, 0), ({"b": 1}, 0)], "is ({'b': int64()}, int64()), the first was ({'a': int64()}, int64())"),
        ([([[1], [1, 2]], 0)], "its iterator yields something that is not an array"),
    ],
)
def test_generators_that_cannot_be_used(refusal, elements, words):
    """What the element is, and what the first one was."""
    kind, message = refusal(lambda: (each for each in elements))
    assert kind == "task_error"
    assert words in message
