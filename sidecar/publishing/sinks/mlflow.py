"""Log results to MLflow: one run of MLflow for each run, or the run of training itself where its id is known.

MLflow's own library sends them (`sidecar.publishing.sinks.mlflow_process`), so that servers, logins and artifact stores
of all kinds work. It runs in a process of its own: it takes more memory than the whole daemon, and has no limit for
uploads.

MLflow permits letters, digits, `_`, `-`, `.`, blanks and `/` in at most 250 characters, and a name has to be a path in
normal form (mlflow/utils/validation.py). It permits `:` as well in newer versions only. `series` names what is logged.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.coordination.run import find_run
from sidecar.coordination.storage import Storage
from sidecar.coordination.totals import number_of
from sidecar.errors import RecordError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import SCHEMA, Result
from sidecar.publishing.sinks.credential_file import secret_line
from sidecar.publishing.sinks.line_process import LineProcess, NoAnswerError
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.system.plain_text import shortened, without_password

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][\w-]{0,255}", re.ASCII)
MODULE: Final = "sidecar.publishing.sinks.mlflow_process"
START_SECONDS: Final = 60.0  # to start Python and to import mlflow, from a slow disk
_STEPS: Final = 4  # the most requests to the server for one question
_TOKEN: Final = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Record MLflow's run, so that every node logs to the same one: the first record decides."""

    mlflow_run: str
    schema: int = SCHEMA


class MLflow:
    """Log the numbers of each evaluation, at the step of its checkpoint and the time of its completion."""

    name = "mlflow"

    def __init__(
        self,
        uri: str,  # tracking server, such as `http://mlflow:5000`
        storage: Storage,  # the state directory of the run
        run_dir: Path,  # its path, for messages and for exports
        timeout_seconds: float,  # limit for each request to the server
        *,
        environ: Mapping[str, str],  # variables of MLflow: `MLFLOW_RUN_ID`, `MLFLOW_EXPERIMENT_NAME` and others
        token_file: Path | None = None,  # with the token; it may be renewed at any time
    ) -> None:
        self._token_file = token_file
        self.uri, self._storage, self._run_dir = without_password(uri), storage, run_dir
        self._timeout_seconds = timeout_seconds
        self._given = environ.get("MLFLOW_RUN_ID") or None
        self._experiment = environ.get("MLFLOW_EXPERIMENT_ID") or environ.get("MLFLOW_EXPERIMENT_NAME") or ""
        self.variables = {
            "MLFLOW_TRACKING_URI": uri,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the delivery repeats, with longer pauses
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(math.ceil(timeout_seconds)),
            "MLFLOW_DISABLE_TELEMETRY": "true",  # a daemon reports to nobody unasked
        }
        self.process = LineProcess(MODULE, self.variables)
        self._certain = False  # whether MLflow lacks the next result for certain
        self._remedy = "; the variable MLFLOW_RUN_ID names it"

    def write(self, evaluation: Evaluation) -> None:
        """Log an evaluation. Before the first one, and after a failure, MLflow is asked for the points that it has."""
        run = self._given or self._own_run(evaluation)
        is_uncertain, self._certain = not self._certain, False
        answer = self._ask(
            {
                "do": "log",
                "run": run,
                "own": self._given is None,
                "step": evaluation.checkpoint.step or 0,
                "milliseconds": evaluation.milliseconds,
                "points": points(series(evaluation.result)),
                "ask": is_uncertain,
            }
        )
        self._certain = not answer["there"]  # else the next one may be there, too

    def logged_run(self) -> str | None:
        """Return the id of MLflow's run; None if nothing was logged yet. Safe in any thread."""
        if self._given is not None:
            return self._given
        recorded = find_run(self._storage)
        return None if recorded is None else self._target(self._record(recorded.run))

    def renew_token(self) -> None:
        """Read the token again. Raises `SinkUnavailableError` if its file cannot be read."""
        if self._token_file is not None and (token := secret_line(self._token_file)) != self.variables.get(_TOKEN):
            self.variables[_TOKEN] = token
            self.process.close()  # the next one starts with it

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
            raise SinkUnavailableError(f"MLflow: {shortened(found)} is not the id of a run: is {self.uri} a server?")
        self._storage.create(path, dumps(_Target(mlflow_run=found)))
        target = self._target(path)
        if target is None:
            raise SinkUnavailableError(f"{self._run_dir / path} cannot be read at the moment")
        if target != found:
            self._ask({"do": "delete_run", "run": found})
        return target

    def _record(self, run: str) -> str:
        """Return the path of the record for this run, this server and this experiment."""
        key = hashlib.sha256(repr((run, self.uri, self._experiment)).encode()).hexdigest()[:12]
        return f"sinks/mlflow-{key}.json"

    def _target(self, path: str) -> str | None:
        data = self._storage.read(path, SMALL.size)
        if data is None:
            return None
        try:
            return loads(_Target, data).mlflow_run
        except RecordError as error:
            raise SinkUnavailableError(f"{self._run_dir / path} is damaged: remove it ({error})") from error

    def _ask(self, question: Mapping[str, Any]) -> Any:
        self.renew_token()
        return ask(self.process, question, _STEPS * self._timeout_seconds, remedy=self._remedy)


def ask(
    process: LineProcess,  # the process, which runs `MODULE`
    question: Mapping[str, Any],  # a request as `mlflow_process` takes it
    seconds: float,  # limit for the answer, in addition to the time that the process may take to start
    *,
    remedy: str = "",  # end of the sentence about a run that cannot take results
    descriptors: tuple[int, ...] = (),  # open files that the process needs
) -> Any:
    """Return the answer of the process that talks to MLflow.

    Raises `SinkUnavailableError` or `SinkRefusedError`.
    """
    try:
        answer = process.ask(question, START_SECONDS + seconds, descriptors=descriptors)
    except NoAnswerError as error:
        raise SinkUnavailableError(f"MLflow: {error}") from error
    if "error" not in answer:
        return answer
    if answer["refused"]:
        raise SinkRefusedError(f"MLflow: {answer['error']}")
    raise SinkUnavailableError(f"MLflow: {answer['error']}{remedy if answer['gone'] else ''}")


_MOST_CHARACTERS: Final = 100  # of an eval set and of a metric: both, and the bound behind them, fit in 250
_NOT_PERMITTED: Final = re.compile(r"[^\w.\- ]")
_MARK_CHARACTERS: Final = 8


def series(result: Result) -> dict[str, float]:
    """Return the numbers of an evaluation by name: `EVAL_SET/METRIC`, its bounds, and `EVAL_SET/examples`.

    The bounds are `EVAL_SET/METRIC_lower` and `_upper`: a server that stores files cannot have both `a/b` and `a/b/c`.
    A metric that has the name of a bound or of the examples takes their place.
    """
    numbers, others = dict[str, float](), dict[str, float]()
    for eval_set, metrics in result.metrics.items():
        for metric, value in metrics.items():
            name = f"{_part(eval_set)}/{_path(metric)}"
            numbers[name] = number_of(value)
            for bound, number in (("lower", value.lower), ("upper", value.upper)):
                if number is not None:
                    others[f"{name}_{bound}"] = number
    for eval_set, examples in result.counted().items():
        others[f"{_part(eval_set)}/examples"] = float(examples)
    return {**others, **numbers}


def _path(name: str) -> str:
    """Return a name in which `/` may stand, as metrics of several classes have it."""
    parts = name.split("/")
    legal = "/".join("_" if part in ("", ".", "..") else _NOT_PERMITTED.sub("_", part) for part in parts)
    return _marked(legal, name)


def _part(name: str) -> str:
    """Return a name without `/`: the eval set `a/b` with the metric `c` is not `a` with `b/c`."""
    legal = _NOT_PERMITTED.sub("_", name)
    if legal in ("", ".") or legal.startswith(".."):  # MLflow takes any name that begins with .. for a way out
        legal = f"_{legal[1:]}"
    return _marked(legal, name)


def _marked(legal: str, name: str) -> str:
    """Return the legal name; if it differs from the name, it ends with a hash, so that no two names become one."""
    if legal == name and len(legal) <= _MOST_CHARACTERS:
        return legal
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_MARK_CHARACTERS]
    return f"{legal[: _MOST_CHARACTERS - _MARK_CHARACTERS - 1].rstrip('/')}-{mark}"


def points(numbers: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the numbers with all bits, in a form that JSON can carry, NaN and infinity included."""
    return [(name, number.hex()) for name, number in numbers.items()]
