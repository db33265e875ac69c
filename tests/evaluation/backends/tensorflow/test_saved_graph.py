"""SavedModels by their own signature: the built model's numbers for those who trust them; for others never run."""

import os
import shutil
import weakref

import numpy as np
import psutil
import pytest

pytestmark = [
    pytest.mark.takes_turns(3),
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # of Keras, while it saves
]

SHAPE = (8, 8, 1)


def plain(of, digits):
    """Without regularisation, which no signature returns."""
    return of.Sequential([of.layers.Input(SHAPE), *digits.layers(of)[:-1], of.layers.Dense(10, name="last")])


def varied(model):
    """Weights that give other numbers than chance, and statistics that are not 0 and 1."""
    random = np.random.default_rng(5)
    model.set_weights([random.uniform(0.1, 1, each.shape) - 0.5 * (each.ndim > 1) for each in model.get_weights()])
    return model


def module_of(model, **functions):
    """A tf.Module around a model or variables, with functions of one image each."""
    import tensorflow as tf

    module = tf.Module()
    module.model = model
    spec = tf.TensorSpec((None, *SHAPE), name="image")
    for name, function in functions.items():
        setattr(module, name, tf.function(function, input_signature=[spec], autograph=False))
    return module


def by_module(model, path):
    import tensorflow as tf

    module = module_of(model, serve=lambda image: {"logits": model(image, training=False)})
    tf.saved_model.save(module, path, signatures=module.serve)


def by_saved_model(model, path):
    import tensorflow as tf

    tf.saved_model.save(model, path)


WRITERS = {
    "Keras 3, export": ("keras", lambda model, path: model.export(path, verbose=False)),
    "Keras 3, saved_model.save": ("keras", by_saved_model),
    "Keras 3 in a tf.Module": ("keras", by_module),
    "tf_keras, save": ("tf_keras", lambda model, path: model.save(path)),
    "tf_keras, export": ("tf_keras", lambda model, path: model.export(path)),
}


@pytest.fixture
def refused(digits, evaluate):
    """Kind and message of what is raised by evaluating a path by its own graph."""
    from sidecar.evaluation.failures import EvaluationError

    def run(path, trust=True, **changes):
        with pytest.raises(EvaluationError) as caught:
            evaluate(digits.make(**changes), str(path), trust=trust)
        return caught.value.kind, str(caught.value)

    return run


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.drawn(1)
def test_the_same_bits_as_the_built_model(digits, evaluate, tmp_path, kind):
    """Evaluate a graph of any writer by two ranks, without the code of the model."""
    import keras
    import tf_keras

    name, save = WRITERS[kind]
    of = {"keras": keras, "tf_keras": tf_keras}[name]
    model = varied(plain(of, digits))
    save(model, str(tmp_path / "m-5"))
    model.save_weights(str(tmp_path / "m-5.weights.h5"))
    changes = {
        "metrics": lambda: [of.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "loss": of.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    built = evaluate(digits.make(lambda: plain(of, digits), **changes), str(tmp_path / "m-5.weights.h5"))
    graph = evaluate(digits.make(None, **changes), str(tmp_path / "m-5"), ranks=2, trust=True)
    assert graph.hexes == built.hexes
    assert graph.values == built.values, "intervals and directions, too"
    assert (graph.traces, graph.builds) == ([1, 1], [1, 1])
    assert built["accuracy"].value not in (0.0, 1.0)


def test_regularisation_is_not_in_a_graph(digits, evaluate, tmp_path):
    """As docs/how-to/checkpoints.md says: what the model adds to its loss is missing, all else is there."""
    model = varied(digits.conv())
    model.export(tmp_path / "m", verbose=False)
    built, graph = (evaluate(digits.make(), str(tmp_path / "m"), trust=trust) for trust in (False, True))
    assert built["accuracy"] == graph["accuracy"]
    added = float(np.sum(model.losses))
    assert added > 0.01
    assert built["loss"].value - graph["loss"].value == pytest.approx(added, rel=1e-5)


def test_a_softmax_is_seen_as_probabilities(digits, evaluate, tmp_path):
    """As docs/how-to/checkpoints.md says: Keras cannot see the logits, so the loss is that of probabilities alone."""
    import keras

    model = keras.Sequential([keras.layers.Input(SHAPE), *digits.dense().layers, keras.layers.Softmax()])
    model.set_weights([each * 40 for each in varied(model).get_weights()])
    model.export(tmp_path / "m", verbose=False)
    x, y = digits.held_out_arrays()
    found = evaluate(digits.make(None, loss=digits.SCCE()), str(tmp_path / "m"), trust=True)
    probabilities = np.asarray(model(x))
    assert found["accuracy"].value == np.mean(probabilities.argmax(axis=1) == y)
    clipped = -np.log(np.clip(probabilities, 1e-7, 1)[np.arange(len(y)), y], dtype="float64")
    assert clipped.max() > 16, "some are"
    assert found["loss"].value == pytest.approx(clipped.mean(), rel=1e-5)


def spy(folder, digits):
    """A SavedModel that leaves marks when it is loaded and when it is called; the paths of those, and what keeps it."""
    import tensorflow as tf

    called, python, loaded = (folder / name for name in ("called", "python", "loaded"))

    class Resource(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self):
            return tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

        def _initialize(self):
            tf.io.write_file(str(loaded), "ran")

    model = digits.dense()

    def serve(image):
        write = tf.io.write_file(str(called), "ran")
        touch = tf.py_function(lambda: python.touch() or 0, [], tf.int32)
        with tf.control_dependencies([write, touch]):
            return {"logits": tf.identity(model(image, training=False))}

    module = module_of(model, serve=serve)
    module.resource = Resource()
    module.resource.resource_handle  # noqa: B018 - made when asked for
    tf.saved_model.save(module, str(folder / "m-5"), signatures=module.serve)
    for each in (called, python, loaded):
        each.unlink(missing_ok=True)
    return (called, python, loaded), module


def test_nothing_stored_is_run_unless_it_is_trusted(digits, evaluate, tmp_path):
    """A graph that writes files when it is loaded and called: its weights are evaluated, and no file is there."""
    marks, keep = spy(tmp_path, digits)
    task = digits.make(digits.dense)
    built = evaluate(task, str(tmp_path / "m-5"), ranks=2)
    assert [each.exists() for each in marks] == [False, False, False]
    graph = evaluate(task, str(tmp_path / "m-5"), ranks=2, trust=True)
    assert [each.exists() for each in marks] == [True, True, True]
    assert graph.hexes == built.hexes
    del keep


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_lambda_in_a_file_is_never_run(digits, evaluate, tmp_path, suffix, trust):
    """Not even where graphs are trusted: of files only weights are read, and these are evaluated as ever."""
    import keras

    mark = tmp_path / "ran"
    touch = eval(f"lambda x: (__import__('pathlib').Path({str(mark)!r}).touch(), x)[1]")
    layers = [keras.layers.Input(SHAPE), keras.layers.Flatten()]
    keras.Sequential([*layers, keras.layers.Lambda(touch), keras.layers.Dense(10)]).save(tmp_path / f"m{suffix}")
    mark.unlink()
    harmless = lambda: keras.Sequential([*layers, keras.layers.Lambda(lambda x: x), keras.layers.Dense(10)])  # noqa: E731
    found = evaluate(digits.make(harmless), str(tmp_path / f"m{suffix}"), trust=trust)
    assert found.examples == {"test": digits.HELD_OUT}
    assert found.builds == [1]
    assert not mark.exists()


def test_checkpoints_of_all_kinds_in_one_life(digits, evaluate, trained, tmp_path):
    """A graph stands in the model's place for one checkpoint; traces and builds count all there were."""
    first, second = varied(digits.conv()), digits.conv()
    first.export(tmp_path / "first", verbose=False)
    second.export(tmp_path / "second", verbose=False)
    first.save(tmp_path / "m.keras")
    paths = [str(tmp_path / name) for name in ("first", "m.keras", "second")]
    found = evaluate(digits.make(), *paths, trained.path("model"), paths[0], trust=True)
    assert [each.traces for each in found] == [[1], [2], [3], [3], [4]]
    assert [each.builds for each in found] == [[2], [2], [3], [3], [4]]
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert found[0].hexes == found[4].hexes != found[2].hexes
    expected = trained.expected["model"]
    assert found[3]["accuracy"].value == expected["correct"] / expected["count"]


@pytest.fixture(scope="module")
def several(digits, tmp_path_factory):
    """A SavedModel with signatures of several inputs, outputs, types and shapes."""
    import tensorflow as tf

    module = tf.Module()
    module.kernel = tf.Variable(np.random.default_rng(1).normal(size=(64, 10)), dtype="float32", name="kernel")

    def function(called, **inputs):
        specs = {name: tf.TensorSpec(*spec, name=name) for name, spec in inputs.items()}
        return tf.function(called, autograph=False).get_concrete_function(**specs)

    def logits(image):
        return tf.reshape(image, (-1, 64)) @ module.kernel

    module.signatures_of = {
        "serving_default": function(lambda image: {"logits": logits(image)}, image=[(None, *SHAPE)]),
        "two": function(
            lambda image, scale: {"scaled": logits(image) * scale[:, None], "pixels": tf.reduce_sum(image, (1, 2))},
            image=[(None, *SHAPE)],
            scale=[(None,)],
        ),
        "fixed": function(lambda image: {"logits": logits(image)}, image=[(32, *SHAPE)]),
        "text": function(lambda text: {"length": tf.strings.length(text)}, text=[(None,), tf.string]),
        "whole": function(lambda number: {"logits": tf.one_hot(number, 10)}, number=[(None,), tf.int32]),
        "failing": function(lambda image: {"logits": tf.ensure_shape(logits(image), (7, 10))}, image=[(None, *SHAPE)]),
    }
    path = str(tmp_path_factory.mktemp("several") / "m-5")
    tf.saved_model.save(module, path, signatures=module.signatures_of)
    del digits
    return path


def test_several_inputs_and_outputs(digits, evaluate, several):
    """By their names; what the signature does not take is left out; metrics and losses by output."""
    import keras

    x, y = digits.held_out_arrays()
    scale = np.linspace(0.5, 2, len(x))  # float64, as numpy makes it: cast as Keras casts inputs
    pixels = x.sum(axis=(1, 2))

    def data():
        return {"image": x, "scale": scale, "id": np.arange(len(x))}, {"scaled": y, "pixels": pixels}

    task = digits.make(
        None,
        {"test": data},
        signature="two",
        metrics=lambda: {
            "scaled": digits.accuracy(),
            "pixels": [keras.metrics.MeanAbsoluteError(name="mae")],
        },
        loss={"scaled": digits.SCCE(from_logits=True)},
    )
    found = evaluate(task, several, ranks=2, trust=True)
    one = evaluate(digits.make(None), several, trust=True)
    assert found["scaled_accuracy"].value == one["accuracy"].value, "a positive scale changes no arg max"
    assert found["pixels_mae"].value < 1e-5
    assert found["loss"].value != one["loss"].value


def test_numbers_are_cast_as_keras_casts_them(digits, evaluate, several):
    """Convert data in float64 or whole numbers, where the signature takes float32 or int32."""
    x, y = digits.held_out_arrays()
    whole = (x * 16).astype("uint8")
    one, other = (
        evaluate(digits.make(None, {"test": lambda values=values: (values, y)}), several, trust=True)
        for values in (whole, whole.astype("float64"))
    )
    assert one.hexes == other.hexes
    task = digits.make(None, {"test": lambda: (y, y)}, signature="whole")
    assert evaluate(task, several, trust=True)["accuracy"].value == 1.0


@pytest.mark.parametrize(
    ("signature", "change", "words"),
    [
        (
            "serving_default",
            lambda x: x[:, :7],
            "{'image': float32 (None, 8, 8, 1)}, the data gives float32 (32, 7",
        ),
        ("serving_default", lambda x: {"picture": x}, "the data gives {'picture': float32 (32, 8, 8, 1)} as x"),
        ("serving_default", lambda x: x.astype("str"), "the data gives string (32, 8, 8, 1)"),
        ("two", lambda x: x, "the data gives float32 (32, 8, 8, 1) as x: let x be a dict of tensors by these names"),
        ("two", lambda x: (x, x[:, 0, 0, 0]), "the data gives (float32 (32, 8, 8, 1), float32 (32,)) as x"),
        ("two", lambda x: {"image": x}, "(None,)}, the data gives {'image': float32 (32, 8, 8, 1)} as x"),
        ("fixed", lambda x: x, "takes {'image': float32 (32, 8, 8, 1)}"),
        ("text", lambda x: x[:, 0, 0, 0], "takes {'text': string (None,)}, the data gives float32 (32,)"),
        ("whole", lambda x: x[:, 0, 0, 0], "takes {'number': int32 (None,)}, the data gives float32 (32,)"),
        (
            "predict",
            lambda x: x,
            "has no signature 'predict', it has failing, fixed, serving_default, text, two",
        ),
    ],
)
def test_what_does_not_fit(digits, refused, several, signature, change, words):
    """One sentence: what the signature takes, what the data gave, what to do."""
    x, y = digits.held_out_arrays()
    kind, message = refused(several, build_model=None, eval_sets={"test": lambda: (change(x), y)}, signature=signature)
    assert kind == "mismatch"
    assert words in message
    assert "\n" not in message
    assert "free first dimension" in message or signature != "fixed"


def test_a_graph_that_fails(refused, several):
    """The sentence names signature and checkpoint, with TensorFlow's words."""
    kind, message = refused(several, build_model=None, signature="failing")
    assert kind == "task_error"
    assert message.startswith(f"the signature 'failing' of {several} fails on a batch: ")


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def test_what_cannot_be_evaluated(digits, refused, several, tmp_path):
    """No metrics, no model to restore into, no trust, a folder that is gone or damaged."""
    kind, message = refused(several, build_model=digits.compiled, metrics=None, loss=None)
    assert (kind, "has no metrics: give Task(metrics=…)" in message) == ("task_error", True)
    kind, message = refused(f"{several}/variables/variables", build_model=None)
    assert (kind, "is not a SavedModel, and Task(build_model=None)" in message) == ("mismatch", True)
    kind, message = refused(several, trust=False, build_model=None)
    assert (kind, "set trust_saved_graph = true" in message) == ("task_error", True)
    assert refused(tmp_path / "gone", build_model=None)[0] == "vanished"
    for name, damage, expected in (
        ("pb", lambda path: (path / "saved_model.pb").write_bytes(b"\x12\x08nonsense"), "corrupt"),
        ("data", lambda path: zeroed(next(path.glob("variables/*.data*"))), "corrupt"),
        ("short", lambda path: os.truncate(next(path.glob("variables/*.data*")), 2000), "corrupt"),
        ("shard", lambda path: next(path.glob("variables/*.data*")).unlink(), "vanished"),
    ):
        shutil.copytree(several, tmp_path / name)
        damage(tmp_path / name)
        kind, message = refused(tmp_path / name, build_model=None)
        assert (kind, "\n" in message) == (expected, False), message


def test_an_operation_that_is_not_known(refused, several, tmp_path):
    """Such as of a package that the task does not import: the sentence says so, and it is not called vanished."""
    shutil.copytree(several, tmp_path / "m")
    content = (tmp_path / "m" / "saved_model.pb").read_bytes()
    (tmp_path / "m" / "saved_model.pb").write_bytes(content.replace(b"StringLength", b"StrangeThing"))
    kind, message = refused(tmp_path / "m", build_model=None)
    assert kind == "mismatch"
    assert "StrangeThing" in message
    assert "import the package in the task's file" in message


def test_own_restore_goes_before(digits, evaluate, several):
    """Code of the task's says more than a setting of the node."""
    found = evaluate(digits.make(restore=lambda *_: None), several, trust=True)
    assert found.builds == [1]


def vocabulary(folder, words):
    """A SavedModel that reads a vocabulary from its assets."""
    import tensorflow as tf

    (folder / "words.tmp.txt").write_text("\n".join(words))  # a name that is none of a checkpoint's
    module = tf.Module()
    source = tf.lookup.TextFileInitializer(
        str(folder / "words.tmp.txt"),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    module.table = tf.lookup.StaticHashTable(source, -1)
    module.scale = tf.Variable(1.0)
    spec = tf.TensorSpec((None,), tf.string, name="word")
    module.serve = tf.function(
        lambda word: {"logits": tf.one_hot(module.table.lookup(word), 10) * module.scale}, input_signature=[spec]
    )
    tf.saved_model.save(module, str(folder / "m-5"), signatures=module.serve)
    (folder / "words.tmp.txt").unlink()


def test_what_a_pin_holds_can_be_loaded(digits, evaluate, tmp_path):
    """With its vocabulary, after the trainer deleted it; other words are another checkpoint."""
    from catalogs import make_catalog

    from sidecar.checkpoints.inspect import restore_path
    from sidecar.retention.pins.pin import pin
    from sidecar.system.clock import SystemClock

    words = [f"word {number}" for number in range(10)]
    root, pins, digests = tmp_path / "ckpts", tmp_path / "pins", set()
    root.mkdir()
    for order in (words, words[::-1]):
        vocabulary(root, order)
        (found,) = make_catalog(root, pins, quiet_seconds=0, clock=SystemClock()).scan().found
        digests.add(found.checkpoint.digest)
        pinned = pin(found, pins)
        shutil.rmtree(root / "m-5")
        shutil.move(pins, tmp_path / f"elsewhere-{len(digests)}")
        path = restore_path(pinned, tmp_path / f"elsewhere-{len(digests)}" / pinned.folder.name)
        x, y = np.array(words * 5), np.arange(50) % 10
        found = evaluate(digits.make(None, {"test": lambda x=x, y=y: (x, y)}), path, trust=True)
        assert found["accuracy"].value == (1.0 if order is words else 0.0)
    assert len(digests) == 2


def test_saved_weights_are_those_of_the_graph(digits, evaluate, tmp_path):
    """To be restored into what TensorFlow loads, where that was changed meanwhile."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    model = varied(digits.conv())
    model.export(tmp_path / "m", verbose=False)
    evaluator = KerasEvaluator.build(digits.make(), Shard(0, 1), threads=2, cache_bytes=0, trust_saved_graph=True)
    evaluator.read(lambda: None)
    evaluator.restore(str(tmp_path / "m"))()
    evaluator.save_weights(tmp_path)
    (written,) = tmp_path.glob("weights.data-*")
    assert 0 < evaluator.weights_bytes <= written.stat().st_size < evaluator.weights_bytes + 10_000
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    variables = [each for each in tf.train.TrackableView(loaded).descendants() if isinstance(each, tf.Variable)]
    expected = {each.name: each.numpy() for each in variables}
    assert len(expected) >= len(model.weights)
    for each in variables:
        each.assign(tf.zeros_like(each))
    tf.train.Checkpoint(model=loaded).read(str(tmp_path / "weights")).assert_consumed()
    assert all(np.array_equal(each.numpy(), expected[each.name]) for each in variables)
    del evaluate


@pytest.mark.nightly
def test_graphs_that_are_gone_leave_no_memory(digits, tmp_path, record_property):
    """Checkpoints of 16 MB one after the other: each goes before the next one comes."""
    import keras

    def build():
        return keras.Sequential([keras.layers.Input(SHAPE), keras.layers.Flatten(), *map(keras.layers.Dense, SIZES)])

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    model = build()
    paths = [str(tmp_path / f"m-{number}") for number in range(2)]
    for path in paths:
        model.set_weights([each + 1 for each in model.get_weights()])
        model.export(path, verbose=False)
    task = digits.make(None, {"test": lambda: digits.held_out().take(digits.BATCH)})
    evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20, trust_saved_graph=True)
    process, sizes, graphs = psutil.Process(), [], []
    for number in range(GRAPHS):
        evaluator.read(lambda: None)
        evaluator.restore(paths[number % 2])()
        graphs.append(weakref.ref(evaluator._graph))
        evaluator.compute(evaluator.evaluate(lambda: None))
        sizes.append(round(process.memory_info().rss / 1e6))
    assert [each() for each in graphs[:-1]] == [None] * (GRAPHS - 1)
    assert (evaluator.traces, evaluator.builds) == (GRAPHS, GRAPHS)
    record_property("MB after each", sizes)
    print(f"resident MB after each of {GRAPHS} graphs of 16 MB: {sizes}")  # noqa: T201
    assert sizes[-1] - sizes[4] < 3 * MEGABYTES


SIZES = (1900, 2000, 10)
MEGABYTES, GRAPHS = 16, 10
