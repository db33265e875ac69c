"""Read series from Prometheus by its HTTP API."""  # noqa: INP001 - a script next to others, not a package

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

URL: Final = os.environ.get("PROMETHEUS_URL", "http://prometheus:9090")
_ANSWER_SECONDS: Final = 10.0
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # Prometheus is near, so without a proxy


@dataclass(frozen=True, slots=True)
class Series:
    """Hold the labels of a series, and its values by the time at which they were stored (seconds)."""

    labels: Mapping[str, str]
    values: Mapping[float, float]


def samples(selector: str, seconds: float) -> list[Series]:
    """Return the samples of the last seconds exactly as they were stored, without interpolation."""
    found = _ask(f"{selector}[{max(1, round(seconds))}s]")
    return [Series(series["metric"], {stamp: float(value) for stamp, value in series["values"]}) for series in found]


def _ask(query: str) -> list[dict[str, Any]]:
    """Return the result of an instant query; empty while Prometheus cannot be reached."""
    address = f"{URL}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with _open(address, timeout=_ANSWER_SECONDS) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result
    except urllib.error.HTTPError as error:
        raise SystemExit(f"Prometheus refuses {query}: {error.read().decode()}") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return []
