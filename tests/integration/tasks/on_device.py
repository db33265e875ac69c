"""The tiny classifier; its worker's log tells on what it computes, and what of a GPU it took."""

import json
import subprocess
from dataclasses import replace

import plain
import tensorflow as tf


def restore(model, path):
    """Called once the model has computed something."""
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    gpus = tf.config.list_physical_devices("GPU")
    limits = [tf.config.get_logical_device_configuration(gpu) or () for gpu in gpus]
    seen = {
        "gpus": len(gpus),
        "growth": [tf.config.experimental.get_memory_growth(gpu) for gpu in gpus],
        "limits": [each.memory_limit for of_gpu in limits for each in of_gpu if each.memory_limit],
        "computed_on": model(plain.X).device.rpartition("/device:")[2],
        "used_mb": used_mb() if gpus else 0,
    }
    plain.say(f"SEEN {json.dumps(seen)}")


def used_mb():
    """Return what all processes together hold of the first GPU."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def task():
    return replace(plain.task(), restore=restore)
