"""Compare the vocabularies of a model with those in the graph of a SavedModel."""

import importlib

import pytest
from evaluation.backends.tensorflow.tables import TEXTS, keras_says, of_texts, of_words, task

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras looks closely at dicts of inputs
]

SAVED, OTHER = slice(0, 12), slice(14, 17)


def export(model, folder):
    model.export(folder, verbose=False)


def save(model, folder):
    import tensorflow as tf

    tf.saved_model.save(model, folder)


@pytest.mark.parametrize("write", [export, save])
@pytest.mark.drawn(1)
def test_a_vocabulary_of_other_texts_is_refused(evaluate, tmp_path, write):
    """The number would be that of other words; with the texts of training it is the number of Keras, without a note."""
    import keras

    from sidecar.evaluation.failures import EvaluationError

    model = of_texts(keras, SAVED)
    write(model, str(tmp_path / "m"))
    found = evaluate(task(lambda: of_texts(keras, SAVED), TEXTS), str(tmp_path / "m"))
    alone = keras_says(model, TEXTS)
    assert {name: found[name].value for name in alone} == pytest.approx(alone, rel=2e-6)
    assert found.notes == ()
    assert keras_says(of_texts(keras, OTHER), TEXTS) != alone, "or this test says nothing"
    with pytest.raises(
        EvaluationError, match=r"set_vocabulary.*Task\(ignore=\[\"text_vectorization.*/vocabulary\""
    ) as it:
        evaluate(task(lambda: of_texts(keras, OTHER), TEXTS), str(tmp_path / "m"))
    assert it.value.kind == "mismatch"
    found = evaluate(task(lambda: of_texts(keras, OTHER), TEXTS, ignore=["*/vocabulary"]), str(tmp_path / "m"))
    assert any("/vocabulary" in note and "ignore" in note for note in found.notes)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_two_vocabularies_that_changed_places_are_told_apart(restore_refusal, tmp_path, library):
    """A file of words counts as a vocabulary, too."""
    of = importlib.import_module(library)

    def build(first, second):
        inputs, hidden = [], []
        for name, vocabulary in (("first", first), ("second", second)):
            inputs.append(of.Input((1,), dtype="string"))
            numbers = of.layers.StringLookup(vocabulary=vocabulary, name=name)(inputs[-1])
            hidden.append(of.layers.Flatten()(of.layers.Embedding(4, 2)(numbers)))
        return of.Model(inputs, of.layers.Concatenate()(hidden))

    words = tmp_path / "words.txt"
    words.write_text("red\nblue\n")
    save(build(str(words), ["blue", "red"]), str(tmp_path / "m"))
    from sidecar.evaluation.backends.tensorflow.restore import restore

    assert [layer.name for layer in restore(build(["red", "blue"], ["blue", "red"]), str(tmp_path / "m"), None).layers]
    kind, text = restore_refusal(build(["blue", "red"], ["red", "blue"]), tmp_path / "m")
    assert kind == "mismatch"
    assert "'first'" in text
    assert "'second'" in text


def test_a_graph_whose_table_pretends_to_be_huge_is_not_expanded(restore_refusal, tmp_path):
    """The sizes are compared first, as a small file can describe a table that no memory holds."""
    import keras
    from tensorflow.core.protobuf import saved_model_pb2

    save(of_words(keras, SAVED), str(tmp_path / "m"))
    marker = tmp_path / "m" / "saved_model.pb"
    graph = saved_model_pb2.SavedModel.FromString(marker.read_bytes())
    for node in graph.meta_graphs[0].graph_def.node:
        for size in node.attr["value"].tensor.tensor_shape.dim if node.op == "Const" else ():
            size.size = 2**50
    marker.write_bytes(graph.SerializeToString())
    kind, text = restore_refusal(of_words(keras, SAVED), tmp_path / "m")
    assert (kind, str(2**50) in text) == ("mismatch", True)
