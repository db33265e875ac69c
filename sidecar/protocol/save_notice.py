"""Tell a daemon from a training loop that a checkpoint was saved, so that the daemon scans at once.

`sidecar.notify` is this module's function. A POST without a body goes to the daemon's HTTP port. The daemon learns
nothing from it but that a scan is worth while. Needs nothing but the standard library.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Final

from sidecar.system.bucket_url import is_url
from sidecar.system.plain_text import one_line

_MOST_BYTES: Final = 500  # of an answer that a log shows

_log = logging.getLogger("sidecar")


def notify(path: str | os.PathLike[str], url: str = "http://127.0.0.1:19108", *, timeout_seconds: float = 2.0) -> bool:
    """Tell the daemon that a checkpoint was saved, so that it does not wait for its next scan.

    The daemon needs the setting `http_notices = true`. Call this in one process, after the save is complete:

        torch.save(state, "ckpts/step-500.pt")
        sidecar.notify("ckpts/step-500.pt")

    It never raises an error of the network or of the daemon, and never waits longer than `timeout_seconds`. If the
    daemon does not take the notice, the logger `sidecar` gets a warning with the reason, and the next scan finds the
    checkpoint.

    Args:
        path: The checkpoint, or its directory, as a path or URL. A daemon of several runs scans the one that has it.
        url: The address of the daemon, such as `http://node-7:19108`; with passwords in `http_access` of the daemon,
            `https://user:password@node-7:19108`.
        timeout_seconds: The longest time to wait.

    Returns:
        Whether the daemon took the notice.
    """
    found = [f"no answer in {timeout_seconds:g} s"]
    # A thread, since neither the lookup of a name nor an answer that comes byte by byte has a time limit of its own.
    asking = threading.Thread(
        target=lambda: found.append(_ask(path, url, timeout_seconds)), name="sidecar-notify", daemon=True
    )
    try:
        asking.start()
        asking.join(timeout_seconds)
    except RuntimeError as error:  # no more threads, or the interpreter ends
        found.append(str(error))
    if reason := found[-1]:
        where = url.rpartition("@")[2]  # without a password
        _log.warning("%s", one_line(f"the sidecar at {where} did not take the notice of {path}: {reason}"))
    return not reason


def _ask(path: str | os.PathLike[str], url: str, seconds: float) -> str:
    """Return why the daemon did not take the notice; empty if it did."""
    from base64 import b64encode  # noqa: PLC0415 - only what notifies needs these
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # noqa: PLC0415
    from urllib.parse import quote, unquote, urlsplit  # noqa: PLC0415

    try:
        place = os.fspath(path) if is_url(path) else str(Path(path).absolute())
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return "write its URL, such as http://node-7:19108"
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        headers = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        connection = kind(parts.hostname, parts.port, timeout=seconds)
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/notify?path={quote(place)}", headers=headers)
            answer = connection.getresponse()
            taken = answer.status == 202  # noqa: PLR2004 - accepted
            return "" if taken else f"{answer.status} {answer.read(_MOST_BYTES).decode(errors='replace').strip()}"
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
