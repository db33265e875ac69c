"""Log results to MLflow: one run of MLflow for each run, or the run of training itself where its id is known.

MLflow's own library sends them (`sidecar.sinks.mlflow_process`), so that servers, logins and artifact stores of all
kinds work. It runs in a process of its own: it takes more memory than the whole daemon, and has no limit for uploads.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.codec import dumps, loads
from sidecar.coordination.run import find_run
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError
from sidecar.plain_text import shortened, without_password
from sidecar.records import SCHEMA
from sidecar.sinks.exported_best import opened_best
from sidecar.sinks.line_process import LineProcess, NoAnswerError
from sidecar.sinks.mlflow_series import points, series
from sidecar.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][\w-]{0,255}", re.ASCII)
_MODULE: Final = "sidecar.sinks.mlflow_process"
_START_SECONDS: Final = 60.0  # to start Python and to import mlflow, from a slow disk
_STEPS: Final = 4  # the most requests to the server for one question
_UPLOAD_SECONDS: Final = 1800.0  # for 100 GB at 60 MB/s, as restoring may take


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Record MLflow's run, so that every node logs to the same one: the first record decides."""

    mlflow_run: str
    schema: int = SCHEMA


class MLflow:
    """Log the numbers of each evaluation, at the step of its checkpoint and the time of its completion.

    Args:
        uri: Tracking server, such as `http://mlflow:5000`.
        storage: The state directory of the run.
        run_dir: Its path, for messages and for exports.
        timeout_seconds: Limit for each request to the server.
        environ: Variables of MLflow: `MLFLOW_RUN_ID`, `MLFLOW_EXPERIMENT_NAME` and others.
        log_best: Whether a new best export (`exports/best`) becomes an artifact of the run.
    """

    name = "mlflow"

    def __init__(
        self,
        uri: str,
        storage: Storage,
        run_dir: Path,
        timeout_seconds: float,
        *,
        environ: Mapping[str, str],
        log_best: bool = False,
    ) -> None:
        self._uri, self._storage, self._run_dir = without_password(uri), storage, run_dir
        self._timeout_seconds, self._log_best = timeout_seconds, log_best
        self._given = environ.get("MLFLOW_RUN_ID") or None
        self._experiment = environ.get("MLFLOW_EXPERIMENT_ID") or environ.get("MLFLOW_EXPERIMENT_NAME") or ""
        variables = {
            "MLFLOW_TRACKING_URI": uri,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the delivery repeats, with longer pauses
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(math.ceil(timeout_seconds)),
            "MLFLOW_DISABLE_TELEMETRY": "true",  # a daemon reports to nobody unasked
        }
        self._process = LineProcess(_MODULE, variables)
        self._remedy = "; the variable MLFLOW_RUN_ID names it"
        self._sent: str | None = None  # the export that was uploaded last

    def write(self, evaluation: Evaluation) -> None:
        """Log an evaluation. MLflow ignores a point that it has, with the same name, step, time and value."""
        run = self._given or self._own_run(evaluation)
        self._ask(
            {
                "do": "log",
                "run": run,
                "own": self._given is None,
                "step": evaluation.checkpoint.step or 0,
                "milliseconds": evaluation.milliseconds,
                "points": points(series(evaluation.result)),
            }
        )
        if self._log_best:
            self._send_best(run)

    def _own_run(self, evaluation: Evaluation) -> str:
        """Return the id of MLflow's run for this run. Several nodes may begin at once: one of their records is first.

        A run that was created by a daemon that was killed before it recorded that is found by its tag.
        """
        recorded = find_run(self._storage)
        if recorded is None:
            raise SinkUnavailableError("the run has no record at the moment")
        path = self._record(recorded.run)
        self._remedy = f"; or remove {self._run_dir / path}: a new run is begun then"
        if (target := self._target(path)) is not None:
            return target
        question = {"tag": recorded.run, "name": evaluation.run, "milliseconds": evaluation.milliseconds}
        found = self._ask({"do": "find_run", **question})["run"]
        if not isinstance(found, str) or not _RUN_ID.fullmatch(found):
            raise SinkUnavailableError(f"MLflow: {shortened(found)} is not the id of a run: is {self._uri} a server?")
        self._storage.create(path, dumps(_Target(mlflow_run=found)))
        target = self._target(path)
        if target is None:
            raise SinkUnavailableError(f"{self._run_dir / path} cannot be read at the moment")
        if target != found:
            self._ask({"do": "delete_run", "run": found})
        return target

    def _record(self, run: str) -> str:
        """Return the path of the record for this run, this server and this experiment."""
        key = hashlib.sha256(repr((run, self._uri, self._experiment)).encode()).hexdigest()[:12]
        return f"sinks/mlflow-{key}.json"

    def _target(self, path: str) -> str | None:
        data = self._storage.read(path)
        if data is None:
            return None
        try:
            return loads(_Target, data).mlflow_run
        except RecordError as error:
            raise SinkUnavailableError(f"{self._run_dir / path} is damaged: remove it ({error})") from error

    def _send_best(self, run: str) -> None:
        """Upload the best export, unless the run has it. Its files are opened here, and no link in it is followed.

        An export that cannot be uploaded holds up no numbers: it is tried again with the next result.
        """
        try:
            with opened_best(self._run_dir, known=self._sent) as best:
                if best is not None:
                    question = {"do": "log_best", "run": run, "name": best.name, "folder": str(best.folder)}
                    self._ask(question, _UPLOAD_SECONDS, descriptors=best.descriptors)
                    self._sent = best.name
        except SinkUnavailableError as error:
            raise SinkRefusedError(f"the numbers were logged, but not the best export: {error}") from error

    def _ask(self, question: Mapping[str, Any], seconds: float = 0.0, descriptors: tuple[int, ...] = ()) -> Any:
        """Return the answer of the process. Raises `SinkUnavailableError` or `SinkRefusedError`."""
        limit = _START_SECONDS + max(seconds, _STEPS * self._timeout_seconds)
        try:
            answer = self._process.ask(question, limit, descriptors=descriptors)
        except NoAnswerError as error:
            raise SinkUnavailableError(f"MLflow: {error}") from error
        if "error" not in answer:
            return answer
        if answer["refused"]:
            raise SinkRefusedError(f"MLflow: {answer['error']}")
        raise SinkUnavailableError(f"MLflow: {answer['error']}{self._remedy if answer['gone'] else ''}")
