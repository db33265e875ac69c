"""TensorBoard's own reader of event files, without TensorFlow, which takes seconds to import."""

from contextlib import ExitStack
from unittest.mock import patch


def read_events(folder):
    """Read a folder of events whole.

    TensorBoard chooses once for a process whether it works with TensorFlow or with its stub. Only the modules that read
    files get the stub here, and only meanwhile: Keras' callback in another test of this process needs the real one.
    """
    from tensorboard.backend.event_processing import directory_watcher, event_accumulator, event_file_loader, io_wrapper
    from tensorboard.compat import tensorflow_stub

    with ExitStack() as without_tensorflow:
        for module in (directory_watcher, event_file_loader, io_wrapper):
            without_tensorflow.enter_context(patch.object(module, "tf", tensorflow_stub))
        return event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
