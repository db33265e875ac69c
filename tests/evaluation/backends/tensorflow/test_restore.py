"""Tell by kind what is wrong with a checkpoint and in a sentence; nothing is restored in part and kept silent."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def refusal(digits):
    """Restores into a model that is called first, and returns kind and message of the refusal."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    def run(model, path, make_root=None):
        model(digits.held_out_arrays()[0][:1])
        with pytest.raises(EvaluationError) as caught:
            restore(model, str(path), make_root)
        return caught.value.kind, str(caught.value)

    return run


@pytest.fixture
def copied(trained, tmp_path):
    """A checkpoint that a test may damage: prefix, index and data files."""
    folder = shutil.copytree(trained.folder / "model", tmp_path / "copied")
    return folder / "ckpt-1", folder / "ckpt-1.index", folder / "ckpt-1.data-00000-of-00001"


def test_other_shapes(trained, digits, refusal):
    """A model of other widths is named by its first variables, with both shapes."""
    kind, message = refusal(digits.conv(), trained.path("wide"))
    assert kind == "mismatch"
    assert "the model is not the one that was saved" in message
    assert "kernel is float32 (3, 3, 1, 4) in the model, float32 (3, 3, 1, 5) in the checkpoint" in message


def test_other_precision(trained, digits, refusal):
    """Half precision in the checkpoint, single in the model: not silently cast."""
    kind, message = refusal(digits.dense(), trained.path("half"))
    assert kind == "mismatch"
    assert "is float32 (64, 10) in the model, float16 (64, 10) in the checkpoint" in message


def test_other_layers(trained, digits, refusal):
    """A model of other layers: what is missing, where it was looked for, what was saved, what to do."""
    kind, message = refusal(digits.Subclassed(), trained.path("model"))
    assert kind == "mismatch"
    assert "does not hold the model: 2 of 2 variables are not in its 'model'" in message
    assert "kernel" in message
    assert "It was saved with model, optimizer" in message
    assert "Let build_model return the model that was saved, or name its place with Task(checkpoint=…)" in message


def test_no_model_inside(trained, digits, refusal):
    """A checkpoint of an optimizer alone holds momenta of the same shapes, but no model."""
    kind, message = refusal(digits.conv(), trained.path("optimizer_alone"))
    assert kind == "mismatch"
    assert "It was saved with optimizer" in message


def test_two_models_inside(trained, digits, refusal):
    """Where two models fit, none is guessed: both are named, and how to choose."""
    kind, message = refusal(digits.conv(), trained.path("ambiguous"))
    assert kind == "mismatch"
    assert "'student', 'teacher' all match the model; choose one" in message
    assert "Task(checkpoint=lambda model: tf.train.Checkpoint(student=model))" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_keras(trained, digits, refusal):
    """A Keras 2 checkpoint for a Keras 3 model, and the other way round, are named as such."""
    import tf_keras

    kind, message = refusal(digits.conv(), trained.path("keras_2"))
    assert (kind, "It was saved by Keras 2 (tf_keras), the model is of Keras 3" in message) == ("mismatch", True)
    kind, message = refusal(digits.conv(tf_keras), trained.path("model"))
    assert (kind, "It was saved by Keras 3, the model is of Keras 2 (tf_keras)" in message) == ("mismatch", True)


def test_unbuilt_model(trained, digits):
    """A model without variables would keep its random values: refused."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    with pytest.raises(EvaluationError, match="no variables"):
        restore(digits.Subclassed(), trained.path("subclassed"), None)


def test_plain_variable_that_was_not_saved(trained, digits, refusal):
    """A plain tf.Variable of the model must be in the checkpoint too, though Keras 3 does not count it."""
    kind, message = refusal(digits.Scaled(), trained.path("subclassed"))
    assert kind == "mismatch"
    assert "1 of 3 variables are not in its 'model': Variable:0" in message


def test_damaged_bytes(copied, digits, refusal):
    """Flipped bits in the data contradict the checksums: corrupt."""
    prefix, _, data = copied
    content = bytearray(data.read_bytes())
    content[::40] = (each ^ 1 for each in content[::40])  # in every tensor
    data.write_bytes(content)
    kind, message = refusal(digits.conv(), prefix)
    assert kind == "corrupt"
    assert f"{prefix} is damaged: " in message


@pytest.mark.parametrize("which", ["index", "data"])
def test_truncated_file(copied, digits, refusal, which):
    """A file cut short: corrupt."""
    prefix, index, data = copied
    path = index if which == "index" else data
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert refusal(digits.conv(), prefix)[0] == "corrupt"


@pytest.mark.parametrize("which", ["index", "data", "all"])
def test_missing_file(copied, digits, refusal, which):
    """Files that are gone: vanished, as when the trainer deletes an old checkpoint."""
    prefix, index, data = copied
    for path in {"index": [index], "data": [data], "all": [index, data]}[which]:
        path.unlink()
    kind, message = refusal(digits.conv(), prefix)
    assert kind == "vanished"
    assert f"{prefix} is gone, or a file of it: " in message


def test_bits_are_the_checkpoints_own(trained, digits):
    """Every value restored is the checkpoint's, whichever model it is put into."""
    import numpy as np
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.restore import restore

    model = digits.conv()
    restore(model, trained.path("net_and_optimizer"), None)
    other = digits.conv()
    tf.train.Checkpoint(net=other).read(trained.path("net_and_optimizer")).assert_existing_objects_matched()
    assert all(np.array_equal(one, two) for one, two in zip(model.get_weights(), other.get_weights(), strict=True))


ODD_NAMES = (
    "glob[1]-5",
    "star*-5",
    "any?-5",
    "back\\slash-5",
    os.fsdecode(b"no\xfftext-5"),
    "line\nbreak-5",
    "-d {x}%'-5",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_names_that_are_patterns_or_no_text(copied, digits, tmp_path, refusal, name):
    """TensorFlow cannot open some of them; the checkpoint and the folder around it may be named so all the same."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    folder = tmp_path / name
    folder.mkdir()
    for file in copied[1:]:
        file.rename(folder / file.name.replace("ckpt-1", name))
    model = digits.conv()
    model(digits.held_out_arrays()[0][:1])
    restore(model, str(folder / name), None)
    kind, message = refusal(digits.Subclassed(), folder / name)
    assert (kind, f"{folder / name} does not hold the model" in message) == ("mismatch", True)
    (folder / f"{name}.index").unlink()
    kind, message = refusal(digits.conv(), folder / name)
    assert (kind, f"{folder / name} is gone" in message) == ("vanished", True)


@pytest.mark.parametrize(
    "children", [[0], [10**9], [-1], list(range(1, 200_000))], ids=["itself", "none", "minus", "many"]
)
def test_hostile_object_graphs(digits, refusal, tmp_path, children):
    """Cycles, places that are not there, very many of one name: refused like any other checkpoint without the model."""
    import tensorflow as tf
    from tensorflow.core.protobuf import trackable_object_graph_pb2 as proto

    from sidecar.evaluation.backends.tensorflow.restore import GRAPH_KEY

    graph = proto.TrackableObjectGraph()
    root = graph.nodes.add()
    for number, child in enumerate(children):
        root.children.add(node_id=child, local_name=("model", "layers", "optimizer")[number] if number < 3 else "a")
    for _ in children[1:] and [0, *children]:
        graph.nodes.add()
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "m-1"),
        tensor_names=[GRAPH_KEY],
        shape_and_slices=[""],
        tensors=[tf.constant(graph.SerializeToString())],
    )
    started = time.monotonic()
    kind, _ = refusal(digits.conv(), tmp_path / "m-1")
    assert kind in ("mismatch", "corrupt")
    assert time.monotonic() - started < 60


def test_own_restore_reads_a_path_that_is_a_pattern(copied, digits, tmp_path):
    """`Task(restore=…)` gets a path that TensorFlow can open, for as long as it runs."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    def restore(model, path):
        tf.train.Checkpoint(model=model).restore(path).expect_partial()

    for file in copied[1:]:
        file.rename(tmp_path / file.name.replace("ckpt-1", ODD_NAMES[0]))
    evaluator = KerasEvaluator.build(digits.make(restore=restore), Shard(0, 1), threads=1, cache_bytes=0)
    before = evaluator.digest()()
    evaluator.restore(str(tmp_path / ODD_NAMES[0]))()
    assert evaluator.digest()() != before


def test_own_restore_that_fails(copied, digits, tmp_path):
    """An error in the user's own restore is a task error, unless the checkpoint is gone or damaged."""
    import h5py

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.failures import as_failed

    def restore(model, path):
        del model
        raise ValueError(f"no averaged weights in {Path(path).name}")

    evaluator = KerasEvaluator.build(digits.make(restore=restore), Shard(0, 1), threads=1, cache_bytes=0)
    with pytest.raises(ValueError, match="no averaged weights") as caught:
        evaluator.restore(str(copied[0]))()
    assert as_failed(caught.value, phase="restore", plan=1, rank=0).kind == "task_error"
    odd = tmp_path / "m[1]-5.weights.h5"  # no pattern, though it looks like one
    odd.touch()
    with pytest.raises(EvaluationError, match=r"m\[1\]-5\.weights\.h5 .*damaged"):
        evaluator.restore(str(odd))()
    h5py.File(odd, "w").close()
    with pytest.raises(ValueError, match="no averaged weights"):
        evaluator.restore(str(odd))()
    for path in copied[1:]:
        path.unlink()
    with pytest.raises(EvaluationError, match=re.escape(str(copied[0]))) as gone:
        evaluator.restore(str(copied[0]))()
    assert gone.value.kind == "vanished"


def test_own_root_that_fails(trained, digits):
    """An exception in Task(checkpoint=…) is let through: it is the user's."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    def root(_):
        raise KeyError("encoder")

    with pytest.raises(KeyError, match="encoder"):
        restore(digits.conv(), trained.path("model"), root)


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_a_checkpoint_of_a_model_that_was_not_built(package, tmp_path, refusal):
    """It holds no weights; which Keras saved it is not the trouble."""
    import importlib

    import tensorflow as tf

    of = importlib.import_module(package)
    tf.train.Checkpoint(model=of.Sequential([of.layers.Dense(3)]), optimizer=of.optimizers.SGD()).write(
        str(tmp_path / "ckpt-1")
    )
    built = of.Sequential([of.layers.Input((8, 8, 1)), of.layers.Dense(3)])
    kind, message = refusal(built, tmp_path / "ckpt-1")
    assert kind == "mismatch"
    assert "call the model once, or fit it, before it is saved" in message
    assert "saved by Keras" not in message
