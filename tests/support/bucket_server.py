"""Real servers of object storage on loopback, to be killed, stopped and started again.

Each holds one bucket. `SERVERS` says which programs there are; `make test` installs them into `.venv-buckets`.
"""

import base64
import hashlib
import hmac
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path

PATIENCE_SECONDS = 240
PROGRAMS = Path(__file__).resolve().parents[2] / ".venv-buckets" / "bin"
BUCKET = "runs"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The published key of the emulator's account, `devstoreaccount1`."""

SERVERS = {
    "localbucket": ("{folder}", "--host=127.0.0.1", "--port={port}"),
    "moto_server": ("--host=127.0.0.1", "--port={port}"),
    "azurite-blob": (
        "--blobHost=127.0.0.1",
        "--blobPort={port}",
        "--location={folder}",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--silent",
    ),
    "s3rver": ("--directory={folder}", "--address=127.0.0.1", "--port={port}", "--no-vhost-buckets", "--silent"),
}
"""The arguments of each program.

localbucket: objects are files, and survive a kill. It ignores a stale etag of a put.
moto_server: objects are in memory, and a kill loses them and the bucket. Conditions of gets and puts hold.
azurite-blob: Azure's protocol; conditions hold; a kill loses what was written in the last seconds.
s3rver: it ignores every condition, so that a program which needs them must refuse it.
"""

_open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class BucketServer:
    """Serves one bucket out of `folder`; `with` starts it and ends it."""

    def __init__(self, program, folder):
        self.name = Path(program).name
        self._program, self._folder = program, Path(folder)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port = server.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self._running = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def url(self):
        """The URL of the bucket, as a user writes it."""
        return f"{'az' if self.name == 'azurite-blob' else 's3'}://{BUCKET}"

    @property
    def environment(self):
        """The variables by which a program finds the server and its account."""
        if self.name == "azurite-blob":
            return {
                "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
                "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{self.address}/devstoreaccount1",
                "AZURE_ALLOW_HTTP": "true",
            }
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "S3RVER",
            "AWS_SECRET_ACCESS_KEY": "S3RVER",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self):
        """Start it, and wait until it has the bucket."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        words = [each.format(folder=data, port=self._port) for each in SERVERS[self.name]]
        # Nothing of the user's account is read, and a request that leaves loopback reaches nothing.
        environ = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "AWS_EC2_METADATA_DISABLED": "true"}
        environ |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
        with (self._folder / "log").open("ab") as log:
            self._running = subprocess.Popen(
                [self._program, *words], stdout=log, stderr=log, env=environ, cwd=self._folder, start_new_session=True
            )
        end = time.monotonic() + PATIENCE_SECONDS
        while not self._has_bucket():
            assert self._running.poll() is None, (self._folder / "log").read_text()[-4000:]
            assert time.monotonic() < end, (self._folder / "log").read_text()[-4000:]
            time.sleep(0.1)

    def kill(self):
        """End it and its children at once, as a crash does."""
        if self._running.returncode is None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()

    def stop(self):
        """Let it answer nothing until `resume`: connections stay open."""
        os.killpg(self._running.pid, signal.SIGSTOP)

    def resume(self):
        """Let it go on after `stop`."""
        os.killpg(self._running.pid, signal.SIGCONT)

    def _has_bucket(self):
        """Create the bucket unless it is there, and return whether the server answered."""
        path, headers = f"/{BUCKET}", {}
        if self.name == "azurite-blob":
            path, headers = _container_of_azurite()
        request = urllib.request.Request(self.address + path, method="PUT", headers=headers)
        try:
            with _open_url(request, timeout=5):
                return True
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 409:  # it is there already
                    raise
            return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def _container_of_azurite():
    """Return path and signed headers of the request that creates the container, by Azure's scheme `SharedKey`."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    path = f"/devstoreaccount1/{BUCKET}"
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/devstoreaccount1{path}", "restype:container"])
    signature = hmac.digest(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256)
    signed = headers | {"Authorization": f"SharedKey devstoreaccount1:{base64.b64encode(signature).decode()}"}
    return f"{path}?restype=container", signed
