"""Find out which program has the HTTP port: most often it is the daemon of the same run."""

import http.client
import json
from typing import Final

from sidecar.settings import Settings
from sidecar.system.addresses import dialled

_ANSWER_SECONDS: Final = 2.0  # a daemon on this machine answers at once
_ANSWER_BYTES: Final = 1024 * 1024


def node_serving(settings: Settings) -> str | None:
    """Return the node of this run's daemon that serves at the settings' address; None if it is another program."""
    connection = http.client.HTTPConnection(dialled(settings.http_host), settings.http_port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/api/status")
        found = json.loads(connection.getresponse().read(_ANSWER_BYTES))
        return str(found["node"]) if found["run"] == settings.run else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):  # another program
        return None
    finally:
        connection.close()
