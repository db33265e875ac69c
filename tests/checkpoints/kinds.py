"""What keras_writers.py can write, for those who may not import a framework."""

KINDS = (
    "keras",
    "keras_by_tf_keras",
    "keras_short_of_memory",
    "keras_failed",
    "weights",
    "weights_by_tf_keras",
    "weights_latest",
    "h5",
    "h5_by_tf_keras",
    "shards",
    "saved_model",
    "saved_model_by_tf_keras",
    "saved_model_with_assets",
    "export",
    "tf_object",
)
NEVER_WHOLE = ("keras_failed",)
