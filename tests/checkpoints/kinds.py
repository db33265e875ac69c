"""List what keras_writers.py and torch_writer.py can write, for those who may not import a framework."""

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
    "tf_object_sharded",
)
NEVER_WHOLE = ("keras_failed",)

ARCHIVES = ("torch_training", "torch_state", "torch_buffer", "torch_bfloat16", "torch_unchecked", "lightning")
"""Archives of `torch.save`."""

HUGGING_FACE = (
    *("safetensors", "safetensors_shards"),
    *("pretrained", "pretrained_shards", "pretrained_bin_shards", "trainer"),
)
"""Files of safetensors, and folders of Hugging Face's libraries."""

DCP = ("dcp", "dcp_sharded")
"""Folders of torch.distributed.checkpoint, of one and of two ranks."""

TORCH_KINDS = ARCHIVES + HUGGING_FACE + DCP
TRAINER_SAVES = ("trainer_in_place", "trainer_limited")
"""The same folders under the names that the Trainer gives them."""

LIGHTNING_FOLDERS = ("lightning_last", "lightning_best_and_last", "lightning_link")
NO_CHECKPOINTS = ("legacy", "script", "exported")
LIGHTNING_SAVES = ("lightning_same_filesystem", "lightning_other_filesystem")
"""The same archives, as Lightning moves them from a temporary file to their final name."""

SECOND_WRITERS = (
    "keras_by_tf_keras",
    "keras_short_of_memory",
    "weights_by_tf_keras",
    "weights_latest",
    "h5_by_tf_keras",
    "saved_model",
    "saved_model_by_tf_keras",
)
"""Other writers of a format that the other kinds have, too: in `make test-all` their bytes are damaged one by one."""

CALLBACKS = (
    "tf_object_async",
    "model_checkpoint",
    "model_checkpoint_weights",
    "model_checkpoint_by_tf_keras",
    "model_checkpoint_weights_by_tf_keras",
    "backup_and_restore",
)
"""The same formats as training loops write them, under names of their own: nothing but how they are written is new."""
