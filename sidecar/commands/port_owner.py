"""Find out which program has the HTTP port: most often it is the daemon of the same run."""

import http.client
import json
import ssl
from typing import Final

from sidecar.settings import Settings
from sidecar.system.addresses import dialled

UNNAMED: Final = ""
"""Stands for the node of a daemon that names it only to those with a password or a certificate."""

_ANSWER_SECONDS: Final = 2.0  # a daemon on this machine answers at once
_ANSWER_BYTES: Final = 1024 * 1024
_REALM: Final = 'realm="sidecar"'


def node_serving(settings: Settings) -> str | None:
    """Return the node of this run's daemon that serves at the settings' address; None if it is another program.

    With `http_access` it may be `UNNAMED`. The daemon's certificate is not verified: it is asked for its name only.
    """
    host, port = dialled(settings.http_host), settings.http_port
    connections = [http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)]
    if settings.http_access is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connections.insert(0, http.client.HTTPSConnection(host, port, timeout=_ANSWER_SECONDS, context=context))
    for connection in connections:
        try:
            connection.request("GET", "/api/status")
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.UNAUTHORIZED and _REALM in answer.headers.get("WWW-Authenticate", ""):
                return UNNAMED
            found = json.loads(answer.read(_ANSWER_BYTES))
            runs = found.get("runs", [found])  # one daemon may serve several
            return next((str(run["node"]) for run in runs if run["run"] == settings.run), None)
        except ssl.SSLError as error:
            if "CERTIFICATE_REQUIRED" in (error.reason or ""):
                return UNNAMED
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ):  # another program
            continue
        finally:
            connection.close()
    return None
