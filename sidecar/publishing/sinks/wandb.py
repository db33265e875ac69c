"""Log results to Weights & Biases: one run of W&B for each run, with the training step as the axis of each number.

W&B's own library sends them (`sidecar.publishing.sinks.wandb_process`), in a process of its own, for the reasons that
MLflow's has one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.coordination.run import find_run
from sidecar.coordination.storage import Storage
from sidecar.errors import SettingsError
from sidecar.publishing.sinks.credential_file import secret_line
from sidecar.publishing.sinks.line_process import LineProcess, NoAnswerError
from sidecar.publishing.sinks.mlflow import points, series
from sidecar.publishing.sinks.sink import Evaluation, SinkUnavailableError

_MODULE: Final = "sidecar.publishing.sinks.wandb_process"
_START_SECONDS: Final = 60.0  # to start Python and to import wandb, from a slow disk
_STEPS: Final = 4  # requests, one after the other: login, run, numbers, end
_KEY: Final = "WANDB_API_KEY"
_ID_CHARACTERS: Final = 12


class Wandb:
    """Log the numbers of each evaluation; W&B leaves out those of an evaluation that it has.

    `environ`: W&B's variables: `WANDB_ENTITY`, `WANDB_BASE_URL`, `WANDB_RUN_GROUP`, `WANDB_MODE` and others. `key_file`
    holds the API key, and may be renewed at any time. Raises `SettingsError` where the variables would lose all
    results.
    """

    name = "wandb"

    def __init__(
        self,
        project: str,
        storage: Storage,
        timeout_seconds: float,
        *,
        environ: Mapping[str, str],
        key_file: Path | None = None,
    ) -> None:
        mode = environ.get("WANDB_MODE", "online")
        if mode not in ("online", "offline"):
            raise SettingsError(
                f"wandb_project: the variable WANDB_MODE is {mode!r}, with which no result is logged: "
                "set it to online or offline, or leave wandb_project out"
            )
        if mode == "offline" and not environ.get("WANDB_DIR"):
            raise SettingsError(
                "wandb_project: WANDB_MODE is offline, and no folder is named for the files that `wandb sync` sends "
                "later: set the variable WANDB_DIR"
            )
        self.project, self._storage, self._timeout_seconds = project, storage, timeout_seconds
        self._given, self._key_file = environ.get("WANDB_RUN_ID"), key_file
        self.variables = {
            "WANDB_MODE": mode,
            "WANDB_INIT_TIMEOUT": str(max(1, round(timeout_seconds))),
            "WANDB_ERROR_REPORTING": "false",  # a daemon reports to nobody unasked
        }
        self.process = LineProcess(_MODULE, self.variables)

    def write(self, evaluation: Evaluation) -> None:
        """Log one evaluation, and wait until the server, or offline the disk, has it."""
        if self._key_file is not None and (key := secret_line(self._key_file)) != self.variables.get(_KEY):
            self.variables[_KEY] = key
            self.process.close()  # the next one starts with it
        question = {
            "project": self.project,
            "id": self._given or self._own_id(),
            "name": evaluation.run,
            "plan": evaluation.plan,
            "checkpoint_step": evaluation.checkpoint.step or 0,
            "points": points(series(evaluation.result)),
        }
        try:
            answer = self.process.ask(question, _START_SECONDS + _STEPS * self._timeout_seconds)
        except NoAnswerError as error:
            raise SinkUnavailableError(f"W&B: {error}") from error
        if "error" in answer:
            raise SinkUnavailableError(f"W&B: {answer['error']}")

    def _own_id(self) -> str:
        """Return the same id on every node and after every restart, so that all go on with one run."""
        recorded = find_run(self._storage)
        if recorded is None:
            raise SinkUnavailableError("the run has no record at the moment")
        return f"sidecar-{hashlib.sha256(recorded.run.encode()).hexdigest()[:_ID_CHARACTERS]}"
