"""Upload each new best export as an artifact of MLflow's run, in a thread of its own.

An export is made some seconds after its result, when its pin is not needed any more, and may take long to upload. So
this is not done while results are logged: none of them waits for an upload.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.errors import SidecarError
from sidecar.publishing.sinks.exported_best import opened_best
from sidecar.publishing.sinks.line_process import LineProcess
from sidecar.publishing.sinks.mlflow import MODULE, MLflow, ask
from sidecar.system.event_log import EventLog

_LOOK_SECONDS: Final = 10.0  # between two looks: a link and a folder are read
_LAST_PAUSE_SECONDS: Final = 300.0
_UPLOAD_SECONDS: Final = 1800.0  # for 100 GB at 60 MB/s, as restoring may take


class BestUpload:
    """Upload the best export whenever it is another one. `start` begins the thread, `close` ends it."""

    def __init__(
        self,
        sink: MLflow,  # the sink that logs the results
        run_dir: Path,  # the state directory of the run
        delivers: Callable[[], bool],  # returns whether this node delivers the results: only one uploads
        log: EventLog,  # the daemon's log
        *,
        look_seconds: float = _LOOK_SECONDS,  # time between two looks
    ) -> None:
        self._sink, self._run_dir, self._delivers, self.log = sink, run_dir, delivers, log
        self._look_seconds = look_seconds
        self._process = LineProcess(MODULE, sink.variables)
        self._sent: tuple[str, str] | None = None  # MLflow's run, and the export that it has
        self._failing: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow best", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Look a last time, for at most `seconds`, and end the thread. An upload that takes longer is begun anew."""
        self._closing.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        pause, closing = self._look_seconds, False
        while not closing:
            closing = self._closing.wait(pause)
            try:
                if self._delivers():
                    self._upload()
            except Exception as error:  # noqa: BLE001 - the thread must go on, whatever is planted or full
                self._note_failure(str(error) if isinstance(error, SidecarError) else repr(error))
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)
            else:
                pause, self._failing = self._look_seconds, None

    def _upload(self) -> None:
        """Upload the best export, unless the run has it."""
        run = self._sink.logged_run()
        if run is None:
            return
        known = self._sent[1] if self._sent is not None and self._sent[0] == run else None
        with opened_best(self._run_dir, known=known) as best:
            if best is None:
                return
            question = {"do": "log_best", "run": run, "name": best.name, "folder": str(best.folder)}
            self._sink.renew_token()
            began = time.monotonic()
            answer = ask(self._process, question, _UPLOAD_SECONDS, descriptors=best.descriptors)
            self._sent = (run, best.name)
        if answer["done"]:
            self.log.info("best_uploaded", export=best.name, mlflow_run=run, seconds=round(time.monotonic() - began, 1))

    def _note_failure(self, reason: str) -> None:
        if reason != self._failing:
            self.log.warning("best_upload_failed", reason=reason)
        self._failing = reason
