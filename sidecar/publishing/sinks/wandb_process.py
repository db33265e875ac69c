"""Talk to Weights & Biases, in a process of its own. `sinks.wandb` starts it, and sends one line of JSON per result.

Only this module imports wandb. The library writes to memory first, and its files and the server have a result for
certain only when the run is finished: so each result begins the run again (`resume`) and finishes it.
Each answer is `{"done": true}` or `{"error": …}`.
"""

import os
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from sidecar.publishing.sinks.line_process import answer_lines, error_sentence

STEP: Final = "checkpoint_step"
"""Series with the training step, which is the axis of all others."""

_QUIET: Final = {
    "silent": True,
    "console": "off",
    # These describe a training program, and would describe the daemon:
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def main() -> None:
    """Answer until standard input ends, or until nothing comes for a while."""
    answer_lines(_answer)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        _log(request)
    except Exception as error:  # noqa: BLE001 - libraries below raise what they like
        return {"error": error_sentence(error)}
    return {"done": True}


def _log(request: Mapping[str, Any]) -> None:
    import wandb  # noqa: PLC0415 - an answer says why it cannot be imported

    numbers = {name: float.fromhex(hexadecimal) for name, hexadecimal in request["points"]}
    with tempfile.TemporaryDirectory(prefix="sidecar-wandb-", ignore_cleanup_errors=True) as folder:
        run = wandb.init(
            project=request["project"],
            id=request["id"],
            name=request["name"],
            job_type="evaluation",
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or folder,
            settings=wandb.Settings(**_QUIET),
        )
        try:
            run.define_metric("*", step_metric=STEP)
            # W&B's own step must increase. It is the number of the evaluation: one that W&B has is left out.
            run.log({STEP: request["checkpoint_step"], **numbers}, step=request["plan"])
        finally:
            run.finish()


if __name__ == "__main__":
    main()
