"""Run one process of the training job: an example that `sidecar demo` trains, slowed down to save at regular times.

python trainer.py MODULE

A process whose peers are gone ends at once, so that its container starts it again, and all processes continue together
from the newest checkpoint. Otherwise it would wait half a minute for the others to shut down.
"""  # noqa: INP001 - a script next to others, not a package

import importlib
import os
import sys
import traceback
from typing import Final

import run_files

_STEPS_PER_SAVE: Final = 20
_BATCH_SIZE: Final = 63  # TensorFlow divides a batch among the processes, and the example's batch not by three

if __name__ == "__main__":
    pause = float(os.environ["SAVE_SECONDS"]) / _STEPS_PER_SAVE
    steps = int(os.environ["SAVES"]) * _STEPS_PER_SAVE
    options = {
        "--checkpoints": run_files.CHECKPOINTS,
        "--steps": steps,
        "--save-every": _STEPS_PER_SAVE,
        "--pause": pause,
    }
    train = importlib.import_module(sys.argv[1])
    train.BATCH_SIZE = _BATCH_SIZE
    try:
        train.main([str(word) for option in options.items() for word in option])
    except BaseException:  # noqa: BLE001 - the process must end, whatever the error
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
