"""Show what workers saved, read back by whoever has numpy: joined, complete, and never believed."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sidecar import results
from sidecar.errors import RecordError, TaskError
from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.backend import Rows
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import EXAMPLES
from sidecar.evaluation.states import ExactSum, MinMax, PerExampleValues
from sidecar.evaluation.task import Task

NUMBERS = np.random.default_rng(3).normal(size=23)
BATCH = 3


def plan(folder, ranks=3, *, sharded=True, numbers=NUMBERS):
    """As `ranks` workers save it: every number is an example, batch b is rank b mod n's."""
    for rank in range(ranks):
        count, total = ExactSum((), "int64"), ExactSum((), "float64")
        largest, each = MinMax((), "float64", "max", Shard(rank, ranks)), PerExampleValues(len(numbers))
        with ArtifactWriter(folder / f"worker-{rank}-of-{ranks}", in_parallel=ThreadPoolExecutor(1)) as made:
            made.begin(None)
            for first in range(rank * BATCH, len(numbers), ranks * BATCH):
                batch = numbers[first : first + BATCH]
                count.add(np.int64(len(batch)))
                total.add_each(batch)
                for number in batch:
                    largest.add(number)
                each.put(first, batch)
                columns = {"predictions": np.stack([batch, -batch], axis=1), "y": (batch > 0).astype("int8")}
                made.keep("test", Rows(first if sharded else None, len(batch), columns))
            states = {EXAMPLES: count, "sum": total, "largest": largest, "each": each}
            made.finish({"test": states}, "v")
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_predictions_stand_in_the_order_of_the_data(tmp_path, ranks):
    """However many workers took part, one of them without an example."""
    found = results.read(plan(tmp_path, ranks)).predictions["test"]
    assert list(found) == ["place", "predictions", "y"]
    assert found["place"].tolist() == list(range(23))
    assert found["predictions"].tobytes() == np.stack([NUMBERS, -NUMBERS], axis=1).tobytes()
    assert found["y"].tolist() == (NUMBERS > 0).tolist()


def test_states_of_all_kinds_are_merged(tmp_path):
    """To those of one worker alone."""
    one, many = (results.read(plan(tmp_path / str(ranks), ranks)).states["test"] for ranks in (1, 9))
    assert many[EXAMPLES].integers() == 23
    assert float(many["sum"].round()).hex() == float(one["sum"].round()).hex()
    assert many["largest"].values() == NUMBERS.max()
    assert many["each"].values().tobytes() == NUMBERS.tobytes()


def test_a_set_that_shards_itself_has_no_places(tmp_path):
    """Its examples stand in the order of the ranks."""
    found = results.read(plan(tmp_path, 2, sharded=False)).predictions["test"]
    assert list(found) == ["predictions", "y"]
    assert sorted(found["predictions"][:, 0]) == sorted(NUMBERS)


def test_nothing_that_is_asked_for_needs_a_framework(tmp_path):
    """The reader runs wherever numpy does."""
    code = (
        "import sys; from sidecar import results; print(len(results.read(sys.argv[1]).predictions['test']['y'])); "
        "print([name for name in ('tensorflow', 'keras', 'torch') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code, plan(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout == "23\n[]\n"


def test_the_checkpoints_folder_is_enough(tmp_path):
    """Its result says which plan succeeded."""
    plan(tmp_path / "plan-4", 1, numbers=NUMBERS[:5])
    plan(tmp_path / "plan-7", 2)
    (tmp_path / "result.json").write_text('{"plan": {"plan": 7}, "outcome": {}}')
    assert len(results.read(tmp_path).workers) == 2
    for text in ("{", "[]", '{"plan": {"plan": "../x"}}', '{"plan": {"plan": null}}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(RecordError, match=r"/result\.json\b"):
            results.read(str(tmp_path))


def test_every_rank_must_be_there_and_complete(tmp_path):
    """A sum of some ranks looks like a result and is none."""
    plan(tmp_path)
    (tmp_path / "worker-1-of-3" / "states.json").unlink()
    with pytest.raises(RecordError, match=r"worker-1-of-3.*states\.json.*missing"):
        results.read(tmp_path)
    (tmp_path / "worker-2-of-3").rename(tmp_path / "worker-2-of-4")
    with pytest.raises(RecordError, match=r"worker-1-of-3.*worker-2-of-4"):
        results.read(tmp_path)
    with pytest.raises(RecordError, match=r"/nowhere.*keep_states"):
        results.read(tmp_path / "nowhere")
    plan(tmp_path / "more", 2)
    (tmp_path / "more" / "worker-2-of-2").mkdir()
    with pytest.raises(RecordError, match=r"/more.*\b3\b.*\b2\b.*worker-2-of-2"):
        results.read(tmp_path / "more")


def test_predictions_that_were_removed_are_told_from_none(tmp_path):
    """Retention leaves the states, which list what there was."""
    import shutil

    shutil.rmtree(plan(tmp_path) / "worker-0-of-3" / "predictions")
    with pytest.raises(RecordError, match=r"worker-0-of-3/predictions/test .*removed"):
        results.read(tmp_path)


def changed(tmp_path, change):
    """A plan in which rank 1's states.json was changed."""
    path = plan(tmp_path) / "worker-1-of-3" / "states.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return tmp_path


def assign(*keys, value):
    def change(record):
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        assign("schema", value=2),
        assign("variables", value="others"),
        assign("variables", value=None),
        assign("states", value={}),
        assign("states", value=[]),
        assign("states", "test", "sum", "reduction", value="os.system"),
        assign("states", "test", "sum", "shape", value=[10**15]),
        assign("states", "test", "sum", "shape", value=[-1]),
        assign("states", "test", "sum", "rows", "60", value=[1]),
        assign("states", "test", "each", "examples", value=10**15),
        assign("states", "test", "each", "examples", value=24),
        assign("states", "test", "each", "places", value=[10**15]),
        lambda record: record["states"]["test"]["each"].update(places=[0], bits=[1]),
        assign("states", "test", "more", value={"reduction": "each", "examples": 1, "places": [], "bits": []}),
        assign("states", "test", "largest", value={"reduction": "min", "shape": [], "dtype": "float64", "bits": None}),
        assign("states", "test", "sum", value={"reduction": "each", "examples": 1, "places": [], "bits": []}),
        assign("states", "test", EXAMPLES, "rows", "0", value=[7]),
        assign("predictions", "test", "rows", value=9),
        assign("predictions", "test", "rows", value="8"),
        assign("predictions", "test", "columns", value=["place"]),
        assign("predictions", "test", "columns", value=[1]),
        assign("predictions", "test", "columns", value=["../../../worker-0-of-3/predictions/test/y"]),
        assign("predictions", "other", value={"rows": 1, "columns": ["y"]}),
        assign("predictions", value=None),
    ],
)
def test_no_record_is_believed(tmp_path, change):
    """Every lie ends as an error of this program that names the file, never as a number."""
    with pytest.raises(RecordError, match=str(tmp_path)):
        results.read(changed(tmp_path, change))


def test_a_number_in_a_file_does_not_fill_the_memory(tmp_path):
    """It is judged before anything of that size is made."""
    huge = assign("states", "test", "each", "examples", value=1 << 40)
    with pytest.raises(RecordError, match=r"/states\.json.*\[1099511627776\]"):
        results.read(changed(tmp_path, huge))


def column(tmp_path, change, name="predictions"):
    """A plan in which rank 1's file was changed."""
    path = plan(tmp_path) / "worker-1-of-3" / "predictions" / "test" / f"{name}.npy"
    before = path.read_bytes()
    after = change(before)
    assert after != before or name == "place"
    path.write_bytes(after)
    return tmp_path


def pickled(_):
    import io

    file = io.BytesIO()
    np.save(file, np.array([print, 1], object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:50],
        lambda _: b"",
        lambda data: b"\x93NUMPY\x02" + data[7:],
        lambda data: data.replace(b"(8, 2)", b"(7, 2)"),
        lambda data: data.replace(b"(8, 2)", b"(1,16)"),
        lambda data: data.replace(b"(8, 2), }  ", b"(-8, -2), }"),
        lambda data: data.replace(b"(8, 2), }       ", b"(99999999, 2), }"),
        lambda data: data.replace(b"False", b"True "),
        lambda data: data.replace(b"'<f8'", b"'|O'  "[:5]),
        lambda data: data.replace(b"'<f8'", b"'<i8'"),
        pickled,
    ],
)
def test_no_file_is_believed(tmp_path, change):
    """Damaged, longer or shorter than it says, of another type, or a pickle."""
    with pytest.raises(RecordError, match="predictions"):
        results.read(column(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.replace(b"(8, 2)", b"(7, 2)")[:-16], r"/predictions\.npy .*\b7\b.*\b8\b"),
        (lambda data: data.replace(b"'<f8'", b"'|S8'"), r"\|S8 \(8, 2\) in 256 bytes"),
        (lambda data: data.replace(b"'<f8'", b"'|V8'"), r"\|V8 \(8, 2\) in 256 bytes"),
    ],
)
def test_a_file_that_is_true_to_itself_may_lie_still(tmp_path, change, words):
    """As long as it says, but too short; or of what is no number."""
    with pytest.raises(RecordError, match=words):
        results.read(column(tmp_path, change))


@pytest.mark.parametrize("place", [3, 0, 10**6])
def test_every_place_is_filled_once(tmp_path, place):
    """Examples that are there twice, or not at all, would shift all others."""

    def change(data):
        assert data.count((3).to_bytes(8, "little")) == 1
        return data.replace((3).to_bytes(8, "little"), place.to_bytes(8, "little"))

    if place == 3:
        assert len(results.read(column(tmp_path, change, "place")).predictions["test"]["y"]) == 23
        return
    with pytest.raises(RecordError, match=r"predictions/test: places"):
        results.read(column(tmp_path, change, "place"))


@pytest.mark.parametrize("wrong", ["yes", 1, None, {"y": 1}])
def test_what_a_task_cannot_ask_for(wrong):
    """The sentence says what it can be."""
    with pytest.raises(TaskError, match=rf"Task\(predictions=…\).*{re.escape(repr(wrong))}"):
        Task(print, {"test": print}, predictions=wrong)
