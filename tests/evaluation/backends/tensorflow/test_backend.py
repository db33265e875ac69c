"""Show what TensorFlow's backend says of itself, and numbers of other precisions than Keras' usual one."""

import pytest

from sidecar.protocol.messages import Check

pytestmark = pytest.mark.tensorflow


def told(**options):
    """Return what decides about the profile beside this process itself."""
    return Check(task="t", framework="tensorflow", search_path=".", threads=2, options=options)


def test_profile_names_all_that_changes_bits(digits, monkeypatch):
    """Versions of every Keras that takes part, device, instruction set, switches, threads; all of them texts."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.backend import make

    assert digits.HELD_OUT
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    profile = make().profile(told())
    assert profile["framework"] == f"tensorflow {tf.__version__}"
    assert f"keras {keras.__version__}" in profile["keras"]
    assert (profile["device"], profile["onednn"], profile["floatx"]) == ("CPU", "0", "float32")
    assert all(isinstance(each, str) for each in profile.values())
    switches = {"onednn", "xla", "tf32", "threads", "trust_saved_graph"}
    assert set(profile) == {"framework", "keras", "floatx", "device", "isa"} | switches


def test_profile_says_whether_stored_graphs_are_trusted(digits):
    """So that the hello finds a node of the group whose settings say otherwise."""
    from sidecar.evaluation.backends.tensorflow.backend import make

    assert digits.HELD_OUT
    said = [make().profile(told(trust_saved_graph=trusts)) for trusts in (False, True)]
    assert [each.pop("trust_saved_graph") for each in said] == ["false", "true"]
    assert said[0] == said[1]


@pytest.mark.parametrize(("count", "said"), [(1, "1 x NVIDIA H200"), (2, "2 x NVIDIA H200")])
def test_profile_says_how_many_devices_of_which_kind(digits, monkeypatch, count, said):
    """So that ranks with another number or another kind find out in the hello."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.backend import make

    assert digits.HELD_OUT
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: ["gpu"] * count)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _gpu: {"device_name": "NVIDIA H200"})
    assert make().profile(told())["device"] == said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", pytest.param("float64", marks=pytest.mark.nightly)])
def test_other_precisions(digits, evaluate, tmp_path, dtype):
    """Models and metrics of half and double precision are summed exactly, too; metrics count past their own limits."""
    import keras
    import tensorflow as tf

    def build():
        return keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, dtype=dtype, name=f"dense_{dtype}")]
        )

    def metrics():
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy", dtype=dtype)]

    path = tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt"))
    source = lambda: digits.held_out().repeat(11)  # noqa: E731 - 4367 examples: float16 counts to 2048, bfloat16 to 256
    task = digits.make(build, {"test": source}, metrics=metrics, batch_size=128)
    one, three = (evaluate(task, path, ranks=ranks) for ranks in (1, 3))
    assert one.hexes == three.hexes
    x, y = digits.held_out_arrays()
    model = build()
    tf.train.Checkpoint(model=model).read(path).expect_partial()
    hits = int((tf.argmax(model(x), axis=1).numpy() == y).sum())
    assert one["accuracy"].value == hits / len(y)
