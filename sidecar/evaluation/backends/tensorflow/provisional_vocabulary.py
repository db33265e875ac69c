"""Let a model be tried whose lookup layers were not adapted: a `.keras` file holds their vocabulary.

`keras.models.load_model` restores such a layer, but a model of the task is called before the first checkpoint is there.
So each layer without a vocabulary gets one of a single word until a checkpoint replaces it. A checkpoint without a
vocabulary is refused.
"""

from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.layer_tables import holders_in, is_of_keras
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.remedy import ON_THE_MODEL

_WORD: Final = "no vocabulary yet"
_NUMBER: Final = -(2**31) + 11


class ProvisionalVocabularies:
    """Give a vocabulary to the layers of a model that have none, and require that restores replace it.

    `model`: the model, which need not be built; `None` if there is none.
    """

    def __init__(self, model: Any) -> None:
        self._words: list[tuple[Any, Any]] = []
        for layer in [] if model is None else holders_in(model):
            if _is_empty(layer):
                word = _NUMBER if is_of_keras(layer, "IntegerLookup") else _WORD
                layer.set_vocabulary([word])
                self._words.append((layer, word))

    def require_replaced(self, path: str) -> None:
        """Raise `EvaluationError` if a layer still has no vocabulary after a restore from this path."""
        empty = [layer.name for layer, word in self._words if list(_vocabulary_of(layer)) == [word]]
        if empty:
            names = ", ".join(map(repr, empty))
            raise mismatch(
                f"{path} has no vocabulary for {names}, and neither has the model: call layer.adapt(…) or "
                f"layer.set_vocabulary(…)",
                remedy=ON_THE_MODEL + ", or save a .keras file, which holds it",
            )


def _is_empty(layer: Any) -> bool:
    """Return whether a layer looks up words or numbers, and has no vocabulary."""
    if not (is_of_keras(layer, "IndexLookup") or is_of_keras(layer, "TextVectorization")):
        return False
    inner = getattr(layer, "_lookup_layer", layer)
    if inner.output_mode == "tf_idf" or (inner.output_mode != "int" and not inner.pad_to_max_tokens):
        return False  # there are weights of words, too, or the number of words is that of outputs
    try:
        return int(inner.lookup_table.size()) == 0
    except tf.errors.FailedPreconditionError:
        return True


def _vocabulary_of(layer: Any) -> Any:
    return layer.get_vocabulary(include_special_tokens=False)
