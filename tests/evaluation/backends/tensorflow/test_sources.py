"""Number the batches of files of records."""

import gzip
from pathlib import Path

import pytest
from evaluation.data.sources_of_files import COUNTS, contents, record_set

from sidecar.data import tfrecords
from sidecar.errors import TaskError

pytestmark = pytest.mark.tensorflow


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
        assert streams[0].examples == sum(COUNTS)
        assert [bool(part) for part in parts[:5]] == [True] * 5, "files of one batch go to different ranks"
        places = {first: x for part in parts for first, x, _ in part}
        assert [x for _, x in sorted(places.items())] == [x for _, x, _ in alone]
    else:
        assert {(each.sharding, each.examples) for each in streams} == {("files", 0)}
        assert len({each.fingerprint for each in streams}) == 1
        for rank, part in enumerate(parts):
            assert {int(batch[0][:1]) % ranks for *_, batch in part} <= {rank}
            assert {place for place, *_ in part} <= {None}


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


def test_examples_that_batching_drops_are_noted(numbers, batches):
    """Keras' own `evaluate` leaves them out as well; the note says how many, where the pipeline knows it."""

    def notes(change, count=10):
        return batches(lambda: change(numbers(count)()), batch_size=None).notes

    (note,) = notes(lambda data: data.batch(4, drop_remainder=True).map(lambda x, y: (x + 1, y)).prefetch(1))
    assert "2 of 10 examples" in note
    (note,) = notes(lambda data: data.filter(lambda x, _: x > 1).padded_batch(4, drop_remainder=True))
    assert "if its last batch is short" in note
    assert notes(lambda data: data.batch(4, drop_remainder=True), count=8) == ()
    assert notes(lambda data: data.batch(4)) == ()
    (note,) = notes(lambda data: data.repeat(3).shuffle(9).batch(4))
    assert "examples 3 times" in note
    repeated, dropped = notes(lambda data: data.repeat(2).ignore_errors().batch(3, drop_remainder=True))[-2:]
    assert "2 of" not in repeated
    assert "left out" in repeated + dropped
    assert notes(lambda data: data.repeat().take(10).batch(4)) == ()
