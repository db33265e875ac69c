"""Answer the requests of the status page: the page, its files, and the data of its curves. Imported at the first one.

Everything comes from values that exist already. `ArchiveReader` answers at once; its thread reads shared storage.
"""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol
from urllib.parse import parse_qs

from sidecar.publishing.evaluation_archive.curve import LEAST_POINTS, MOST_POINTS, curve_json
from sidecar.publishing.evaluation_archive.details import Other
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations, Part
from sidecar.publishing.evaluation_archive.neighbours import neighbours
from sidecar.publishing.evaluation_archive.reader import ArchiveReader
from sidecar.publishing.http.response import HTML, Response, json_response, response, tagged
from sidecar.publishing.page.comparison import comparison_page
from sidecar.publishing.page.document import Files, page
from sidecar.publishing.page.evaluation import evaluation_page, evaluations_page, reading_page
from sidecar.publishing.page.markup import quoted
from sidecar.publishing.page.static_files import static_base, static_files

MOST_ROWS: Final = 100
"""The most rows of one answer of /api/evaluations."""

_ROWS: Final = 40
_POINTS: Final = 500
_MOST_SMOOTHING: Final = 0.999
_PARAMETERS: Final = 8
_LARGEST_PLAN: Final = 10**18
_FOREVER: Final = (("Cache-Control", "public, max-age=31536000, immutable"),)  # the path has the version


class Asked(Protocol):
    """Describe the part of a request that the pages need."""

    @property
    def query(self) -> str:
        """Return the part of the path after the question mark."""


_MakePage = Callable[[dict[str, Any], str, Files], str]


class _UnusableParameterError(ValueError):
    """A parameter of a request cannot be used."""


class PageViews:
    """Answer the requests of the status page.

    `status`: returns the content of /api/status. The value is replaced as a whole, and never changed in place.
    `archive`: answers questions about all evaluations. `base`: the path below which the pages are.
    """

    def __init__(self, status: Callable[[], dict[str, Any]], archive: ArchiveReader, base: str = "") -> None:
        self._status, self.archive, self._base = status, archive, base
        self._made: dict[str, tuple[dict[str, Any], Response]] = {}  # the newest answer made of a status, by path
        self.views: Mapping[str, Callable[[Asked], Response]] = {
            "/": lambda _: self._once("/", lambda status: response(HTTPStatus.OK, page(status, self._files), HTML)),
            "/api/status": lambda _: self._once("/api/status", json_response),
            "/evaluations": self._guarded(self._evaluations_page),
            "/evaluation": self._guarded(self._evaluation_page),
            "/api/curves": lambda _: tagged(json_response(self._curves())),
            "/api/curve": self._guarded(self._curve),
            "/api/evaluations": self._guarded(self._evaluations),
            "/api/evaluation": self._guarded(self._evaluation),
            "/comparison": self._guarded(self._comparison_page),
            "/api/comparison": self._guarded(self._comparison),
        }

    @property
    def _files(self) -> Files:
        return Files(static_base())

    @property
    def _run(self) -> str:
        return str(self._status().get("run", ""))

    def _once(self, path: str, make: Callable[[dict[str, Any]], Response]) -> Response:
        """Return the answer made of the present status. It is made once for all clients."""
        status = self._status()
        made = self._made.get(path)
        if made is None or made[0] is not status:
            made = self._made[path] = status, tagged(make(status))
        return made[1]

    def _guarded(self, view: Callable[["_Parameters"], Response]) -> Callable[[Asked], Response]:
        def answer(request: Asked) -> Response:
            try:
                return view(_Parameters(request.query))
            except _UnusableParameterError as error:
                return response(HTTPStatus.BAD_REQUEST, f"{error}\n")
            except LookupError as error:
                return response(HTTPStatus.NOT_FOUND, f"{error.args[0]}\n")

        return answer

    def _curves(self) -> dict[str, Any]:
        """Return the names of all curves, each with the address of its points."""
        progress = self.archive.progress()
        return {
            "progress": progress,
            "series": [
                {
                    "set": series.eval_set,
                    "metric": series.metric,
                    "goal": series.goal,
                    "evaluations": series.points,
                    "data": series.data,
                    "url": f"{self._base}/api/curve?set={quoted(series.eval_set)}&metric={quoted(series.metric)}",
                }
                for series in self.archive.read(ArchivedEvaluations.series)
            ],
        }

    def _curve(self, asked: "_Parameters") -> Response:
        eval_set, metric = asked.text("set"), asked.text("metric")
        if (part := asked.part(eval_set, metric)) is not None:
            return self._as_json(self.archive.part_curve(part))
        points = asked.whole("points", _POINTS, LEAST_POINTS, MOST_POINTS)
        smoothing = asked.number("smoothing", 0.0, 0.0, _MOST_SMOOTHING)
        best = (self._status().get("best") or {}).get(f"{eval_set}/{metric}", {}).get("plan")
        found = self.archive.read(
            lambda archive: curve_json(archive, eval_set, metric, points=points, smoothing=smoothing, best=best)
        )
        if found is None:
            progress = self.archive.progress()
            if progress["state"] != "read":
                return json_response({"progress": progress}, HTTPStatus.ACCEPTED)
            raise LookupError("no evaluation has this metric on this eval set; /api/curves lists all")
        return tagged(json_response(found))

    def _evaluations(self, asked: "_Parameters") -> Response:
        return tagged(json_response({"progress": self.archive.progress(), "rows": self._rows(asked)}))

    def _evaluations_page(self, asked: "_Parameters") -> Response:
        progress = self.archive.progress()
        note = "" if progress["state"] == "read" else f"The journal is being read: {progress['share']:.0%}."
        return response(HTTPStatus.OK, evaluations_page(self._rows(asked), self._run, self._files, note), HTML)

    def _rows(self, asked: "_Parameters") -> list[dict[str, Any]]:
        """Return rows before a plan, newest first."""
        before = asked.whole("before", _LARGEST_PLAN, 0, _LARGEST_PLAN)
        count = asked.whole("count", _ROWS, 1, MOST_ROWS)
        return self.archive.read(lambda archive: [archive.json_of(row) for row in archive.before(before, count)])

    def _details(self, plan: int) -> dict[str, Any] | None:
        """Return everything about an evaluation and about those around it; None until it was read."""
        found = self.archive.details(plan)
        if found is None:
            return None
        status = self._status()
        bests = status.get("best") or {}
        best = {
            (eval_set, metric): numbers.get("plan")
            for eval_set, by_metric in found["metrics"].items()
            for metric in by_metric
            if (numbers := bests.get(f"{eval_set}/{metric}"))
        }
        around = self.archive.read(lambda archive: neighbours(archive, plan, best))
        others = [
            (Other(eval_set, metric, other["plan"]), other)
            for eval_set, by_metric in around["against"].items()
            for metric, against in by_metric.items()
            for other in against.values()
            if other["plan"] != plan
        ]
        if others:
            distances = self.archive.distances(plan, tuple(dict.fromkeys(name for name, _ in others)))
            if distances is None:
                return None
            for name, other in others:
                other["difference"] = distances.get(name)
        best_metric = status.get("best_metric") or next(iter(bests), None)
        return found | self._directory() | around | {"best_metric": best_metric}

    def _evaluation(self, asked: "_Parameters") -> Response:
        return self._as_json(self._details(asked.whole("plan", None, 1, _LARGEST_PLAN)))

    def _evaluation_page(self, asked: "_Parameters") -> Response:
        plan = asked.whole("plan", None, 1, _LARGEST_PLAN)
        return self._as_page(self._details(plan), evaluation_page, plan)

    def _comparison(self, asked: "_Parameters") -> Response:
        return self._as_json(self.archive.comparison(*asked.plans("new", "old")))

    def _comparison_page(self, asked: "_Parameters") -> Response:
        new, old = asked.plans("new", "old")
        found = self.archive.comparison(new, old)
        return self._as_page(found and found | self._directory(), comparison_page, new)

    def _directory(self) -> dict[str, Any]:
        return {"directory": self._status().get("checkpoint_dir") or "ckpts"}

    def _as_json(self, found: dict[str, Any] | None) -> Response:
        """Return what was read, or that it is being read."""
        if found is None:
            return json_response({"progress": self.archive.progress()}, HTTPStatus.ACCEPTED)
        return tagged(json_response(found))

    def _as_page(self, found: dict[str, Any] | None, make: _MakePage, plan: int) -> Response:
        """Return the page of what was read, or one that loads again in a second."""
        if found is None:
            waiting = response(HTTPStatus.ACCEPTED, reading_page(plan, self._run, self._files), HTML)
            return waiting._replace(headers=(("Refresh", "1"),))
        return tagged(response(HTTPStatus.OK, make(found, self._run, self._files), HTML))


def static_file(place: str) -> Response | None:
    """Return a file of the page; None if there is none at this path."""
    if place == "/favicon.ico":  # browsers ask for it where they do not read the page, for example before JSON
        place = f"{static_base()}/icon.svg"
    if not place.startswith("/static/") or (file := static_files().get(place)) is None:
        return None
    return tagged(Response(HTTPStatus.OK, file.content_type, file.content, _FOREVER))


class _Parameters:
    """Read the parameters of a request. Every method raises `_UnusableParameterError`."""

    def __init__(self, query: str) -> None:
        try:
            self._values = parse_qs(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_PARAMETERS)
        except ValueError as error:
            raise _UnusableParameterError(f"the parameters cannot be read: {error}") from None

    def text(self, name: str) -> str:
        """Return a text."""
        values = self._values.get(name, [])
        if len(values) != 1:
            raise _UnusableParameterError(f"expected {name}=… once")
        return values[0]

    def part(self, eval_set: str, metric: str) -> Part | None:
        """Return the class or slice that is asked for; None if the whole set is."""
        kinds: tuple[Literal["class", "slice"], ...] = ("class", "slice")
        asked = [kind for kind in kinds if kind in self._values]
        if len(asked) > 1:
            raise _UnusableParameterError("expected class=… or slice=…, not both")
        return Part(eval_set, metric, asked[0], self.text(asked[0])) if asked else None

    def whole(self, name: str, default: int | None, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        return int(self.number(name, default, least, most, whole=True))

    def plans(self, *names: str) -> Iterator[int]:
        """Yield the number of a plan for each name."""
        return (self.whole(name, None, 1, _LARGEST_PLAN) for name in names)

    def number(self, name: str, default: float | None, least: float, most: float, *, whole: bool = False) -> float:
        """Return a number within bounds."""
        if default is not None and name not in self._values:
            return default
        given = self.text(name)
        try:
            value = int(given) if whole and given.isascii() else float(given)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or value != value or (whole and not isinstance(value, int)):  # noqa: PLR0124 - NaN
            raise _UnusableParameterError(f"{name} is {'a whole' if whole else 'a'} number from {least} to {most}")
        return value
