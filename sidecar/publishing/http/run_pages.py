"""Answer requests in a process that serves several runs: a list of them, and the pages of each below `/runs/NAME/`."""

from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from sidecar.publishing.http.page_views import Asked, PageViews
from sidecar.publishing.http.response import HTML, Response, json_response, response, tagged
from sidecar.publishing.page.document import Files
from sidecar.publishing.page.run_list import runs_page
from sidecar.publishing.page.static_files import static_base
from sidecar.publishing.run_list import RunSummary, runs_path

_RUNS: Final = "/runs/"

Runs = Callable[[], Collection[RunSummary]]
View = Callable[[Asked], Response]


class RunPages:
    """Answer by path. `runs` returns what is known of each run now."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._pages: dict[str, PageViews] = {}  # by run; they remember what they made

    def view(self, place: str) -> View | None:
        """Return the view of a path; None if there is none."""
        if place == "/":
            return lambda _: tagged(response(HTTPStatus.OK, runs_page(self._json(), Files(static_base())), HTML))
        if place == "/api/status":
            return lambda _: tagged(json_response({"runs": self._json()}))
        name, slash, rest = place.removeprefix(_RUNS).partition("/")
        run = next((each for each in self._runs() if each.run == name), None)
        if not place.startswith(_RUNS) or run is None:
            return None
        if not slash:
            return lambda _: _moved(runs_path(name))
        if run.status is None or run.archive is None:
            reason = f"{run.state}: {run.reason}" if run.reason else run.state
            return lambda _: response(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n")
        return self._pages_of(run).views.get(f"/{rest}")

    def _pages_of(self, run: RunSummary) -> PageViews:
        """Return the pages of a run. A run that began anew has new ones."""
        assert run.archive is not None
        pages = self._pages.get(run.run)
        if pages is None or pages.archive is not run.archive:
            base = runs_path(run.run).rstrip("/")
            pages = self._pages[run.run] = PageViews(partial(self._status, run.run), run.archive, base)
        return pages

    def _status(self, name: str) -> dict[str, Any]:
        """Return the content of a run's /api/status; empty if it has ended meanwhile."""
        return next((each.status for each in self._runs() if each.run == name and each.status), {})

    def _json(self) -> list[dict[str, Any]]:
        """Return what is known of each run, and forget the pages of those that are gone."""
        runs = self._runs()
        self._pages = {run.run: self._pages[run.run] for run in runs if run.run in self._pages}
        return [run.json() for run in runs]


def _moved(path: str) -> Response:
    answer = response(HTTPStatus.PERMANENT_REDIRECT, f"see {path}\n")
    return answer._replace(headers=(("Location", path),))
