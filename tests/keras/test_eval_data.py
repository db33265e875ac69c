"""Take every kind of data that Keras takes."""

import pytest

from sidecar.errors import TaskError

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so at the end of each generator
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", ["generator", "sequence", "arrays", "repeated", "shuffled", "taken"])
@pytest.mark.drawn(4)
def test_all_data_that_keras_takes(kind, exact, small, new_evaluator, tmp_path):
    """The second evaluation sees the same examples as the first one, also of a generator."""
    np, tf = small.np, small.tf

    class Sequence(small.keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return small.x[index * 10 : index * 10 + 10], small.y[index * 10 : index * 10 + 10]

    batches = [(small.x[:50], small.y[:50]), (small.x[50:], small.y[50:])]
    examples = tf.data.Dataset.from_tensor_slices((small.x, small.y))
    data, options, count = {
        "generator": (iter(batches), {}, 101),
        "sequence": (Sequence(), {"steps": 3}, 30),
        "arrays": ((small.x, small.y), {"batch_size": 50}, 101),
        "repeated": (small.dataset().repeat(), {"steps": 3}, 48),
        "shuffled": (examples.shuffle(101).batch(20), {}, 101),
        "taken": (small.dataset(), {"steps": 2}, 32),
    }[kind]
    model = small.trained(1)
    model.save(tmp_path / "m-1.keras")
    model.save(tmp_path / "m-2.keras")
    evaluator = new_evaluator(data=data, every=True, exact=exact, **options)
    evaluator.start()
    logits = np.asarray(model(small.x))
    correct = int((logits.argmax(axis=1) == small.y)[:count].sum())
    accuracy = correct / count if exact else float(np.float32(correct / count))
    assert [each.examples for each in evaluator.results] == [count if exact else None] * 2
    assert [each.metrics["accuracy"] for each in evaluator.results] == [accuracy] * 2


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("exact", [True, False])
def test_a_generator_of_lists(exact, small, new_evaluator, tmp_path):
    """Keras 2 took `yield [a, b], y` for two inputs; an absent weight is no weight."""
    layers = small.keras.layers
    inputs = [small.keras.Input((4,)), small.keras.Input((4,))]
    outputs = layers.Dense(2, activation="softmax")(layers.Concatenate()(inputs))
    model = small.keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(tmp_path / "m-1.keras")
    batches = (([small.x[at : at + 50]] * 2, small.y[at : at + 50], None) for at in (0, 50))
    evaluator = new_evaluator(model, batches, exact=exact)
    evaluator.start()
    (result,) = evaluator.results
    expected = model.evaluate([small.x[:100]] * 2, small.y[:100], verbose=0, return_dict=True)
    assert result.metrics == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("steps", [7, 8])
def test_more_steps_than_batches_are_reported(steps, small, new_evaluator, tmp_path, caplog):
    """The data has 7 batches, all of which are evaluated. A count of NumPy is a whole number, too."""
    small.trained(1).save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(steps=small.np.int64(steps), max_evaluations=small.np.int64(1))
    evaluator.start()
    assert [result.examples for result in evaluator.results] == [101]
    assert ("steps=8" in caplog.text) == (steps == 8)


def test_a_generator_without_end_is_reported(small):
    """Before it fills the memory."""
    from sidecar.keras.eval_data import repeatable

    def endless():
        while True:
            yield small.x, small.y

    with pytest.raises(TaskError, match="more than 10000 bytes"):
        repeatable(endless(), steps=None, batch_size=1, most_bytes=10_000)()
    assert len(list(repeatable(endless(), steps=3, batch_size=1, most_bytes=10_000)())) == 3
