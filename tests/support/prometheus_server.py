"""A real Prometheus that takes remote writes, to be killed and started again."""

import json
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

PATIENCE_SECONDS = 240

_open_url = build_opener(ProxyHandler({})).open


class PrometheusServer:
    """Stores what is written to it in `folder`; `with` starts it and ends it."""

    def __init__(self, program, folder):
        self._program, self._folder = program, Path(folder)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = f"127.0.0.1:{server.getsockname()[1]}"
        self.receiver = f"http://{self.address}/api/v1/write"
        self._running = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Start it, and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / "prometheus.yml").write_text("global: {}\n")
        words = [
            self._program,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--storage.tsdb.retention.time=100y",
            "--web.enable-remote-write-receiver",
        ]
        with (self._folder / "log").open("ab") as log:
            self._running = subprocess.Popen(words, stdout=log, stderr=log)
        self.series("up", time.time())

    def kill(self):
        """End it at once, as a crash does."""
        self._running.kill()
        self._running.wait()

    def series(self, query, moment):
        """The series that an instant query finds, each with its labels and samples, once the server answers."""
        url = f"http://{self.address}/api/v1/query?{urlencode({'query': query, 'time': moment})}"
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with closing(_open_url(url, timeout=5)) as answer:
                    return json.load(answer)["data"]["result"]
            except (URLError, ConnectionError):
                assert time.monotonic() < end, (self._folder / "log").read_text()[-4000:]
                time.sleep(0.1)

    def samples(self, query, moment):
        """Times and numbers of the one series that a query of a range finds; none if there is no such series."""
        found = self.series(query, moment)
        assert len(found) <= 1, found
        return [(time, float(number)) for each in found for time, number in each["values"]]
