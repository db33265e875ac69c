"""Choose the columns that a task saves, and refuse those that cannot be saved."""

import pytest

pytestmark = pytest.mark.tensorflow


def test_a_task_chooses_what_it_keeps(trained, digits, evaluated):
    """Less than everything, under names of its own; a single tensor is called predictions."""
    import tensorflow as tf

    def chosen(x, y, logits):
        return {"guess": tf.argmax(logits, axis=1), "true": y, "ink": tf.reduce_sum(x, axis=[1, 2, 3])}

    published, found = evaluated(digits.make(predictions=chosen), trained.path("model"), 2)
    kept = found.predictions["test"]
    assert list(kept) == ["place", "guess", "true", "ink"]
    assert published["accuracy"].value == float((kept["guess"] == kept["true"]).sum()) / digits.HELD_OUT
    assert kept["ink"] == pytest.approx(digits.held_out_arrays()[0].sum(axis=(1, 2, 3)))
    task = digits.make(predictions=lambda _x, _y, logits: tf.argmax(logits, axis=1))
    _, found = evaluated(task, trained.path("model"), 1)
    assert list(found.predictions["test"]) == ["place", "predictions"]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (lambda _x, _y, p: {"top": p[0]}, r"'top'.*\(10,\).*\b32\b"),
        (lambda _x, y, _p: {"n": len(y)}, "'n'.*one number"),
        (lambda _x, _y, _p: {"name": ["a"]}, "'name'.*list"),
        (lambda _x, _y, p: {"all": {"of": p}}, "'all'.*dict"),
        (lambda _x: 1, r"Task\(predictions=…\).*called with"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(trained, digits, evaluated, chosen, words):
    """Before a number is published."""
    with pytest.raises(Exception, match=words):
        evaluated(digits.make(predictions=chosen), trained.path("model"), 1)


def test_text_and_ragged_rows_are_refused_by_name(digits, evaluated):
    """On the first batch, before anything is restored."""
    import tensorflow as tf

    text = lambda _x, y, _p: {"name": tf.strings.as_string(y)}  # noqa: E731
    with pytest.raises(Exception, match=r"'name'.*text"):
        evaluated(digits.make(predictions=text), "nowhere", 1)
    ragged = lambda _x, _y, p: tf.RaggedTensor.from_tensor(p)  # noqa: E731
    with pytest.raises(Exception, match=r"'predictions'.*RaggedTensor"):
        evaluated(digits.make(predictions=ragged), "nowhere", 1)


def test_rows_of_another_shape_in_a_later_batch_are_refused(digits, evaluated, tmp_path):
    """Sequences that are padded batch by batch."""
    import keras
    import tensorflow as tf

    def build():
        return keras.Sequential([keras.layers.Input((None,), dtype="int32"), keras.layers.Embedding(9, 4)])

    def source():
        return tf.data.Dataset.range(6).map(lambda n: (tf.ones([n + 1], tf.int32), n % 4)).padded_batch(2)

    task = digits.make(
        build,
        {"test": source},
        metrics=None,
        loss=lambda y, p: tf.reduce_sum(p, axis=[1, 2]) + tf.cast(y, tf.float32),
        batch_size=None,
        predictions=lambda _x, _y, p: p,
    )
    path = tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt"))
    with pytest.raises(Exception, match=r"'predictions'.*\(4, 4\).*\(2, 4\)"):
        evaluated(task, path, 1)
