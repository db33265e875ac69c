#!/usr/bin/env python3
"""Take the pictures in docs/img/ of a real demo run, in real programs. `make screenshots` runs this file.

It starts the demo in an empty /srv of its own mount namespace, so that no picture shows a path of this machine, with a
TensorBoard server and an MLflow server that get its results. It films the status page until every checkpoint was
evaluated, and takes the other pictures while all of them still serve. It needs Debian's packages `chromium`, `tmux` and
`fonts-dejavu-core`, and takes about four minutes. `make screenshots` first installs the MLflow server, whose pages need
graphene; without that server its picture stays as it is.
"""

import importlib
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from terminal import PATIENCE_SECONDS, svg, terminal, until

from sidecar.commands.demo import job
from sidecar.commands.demo.children import Children, stop
from sidecar.commands.demo.folder import Folder, claimed
from sidecar.commands.demo.frameworks import FRAMEWORKS, LOCAL
from sidecar.commands.demo.run import Demo, observer_of

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "img"

STATUS: Final[dict[str, dict[str, Any]]] = {
    "status-light.png": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "status-dark.png": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "status-phone.png": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "device_scale_factor": 2,
    },
}
EVALUATION: Final = "status-evaluation.png"
LIVE: Final = "live.gif"
LIVE_SECONDS: Final = 6.0
"""The length of the moving picture, which is faster than the run that it shows."""

TENSORBOARD: Final = "tensorboard.png"
MLFLOW: Final = "mlflow.png"
HISTORY: Final = "terminal-history.svg"
WATCH: Final = "terminal-watch.svg"
PICTURES: Final = (*STATUS, EVALUATION, LIVE, TENSORBOARD, MLFLOW, HISTORY, WATCH)
"""Every picture in docs/img/."""

_PLACE: Final = Path("/srv")
_APART: Final = ("unshare", "--map-root-user", "--mount")
_MOUNTED: Final = f'mount -t tmpfs tmpfs {_PLACE} && exec "$@"'
_INSIDE: Final = "--inside"  # the argument of this program in the namespace
_FRAMES: Final = 60
_LAST_FRAME_SECONDS: Final = 1.5
_ENDS_SECONDS: Final = 3.0  # until the page shows the last evaluation
_COLOURS: Final = 256  # the most common ones as they are, and the others by the nearest
_CHECKPOINTS: Final = 12
_SAVE_EVERY: Final = 120  # steps, as in `sidecar demo`
_PAUSE_SECONDS: Final = 0.12  # per step: the first result comes well before the last checkpoint, also on a busy machine
_POLL_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 30.0
_MOVES_MILLISECONDS: Final = 2000  # until the curves of other programs do not move any more
_TENSORBOARD: Final = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # its own switch: TensorFlow takes seconds
from tensorboard.main import run_main
run_main()
"""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Describe a demo whose checkpoints were all evaluated, and whose daemons still serve."""

    checkpoints: Path
    url: str  # of the worker's daemon
    plan: int  # number of the newest evaluation
    watched: str  # a screen of `sidecar status --watch` during an evaluation, with ANSI codes


def main() -> int:
    """Take all pictures, and return the exit code."""
    chromium = shutil.which("chromium")
    if missing := [name for name in ("chromium", "tmux") if shutil.which(name) is None]:
        sys.stderr.write(f"{' and '.join(missing)} must be installed: apt-get install {' '.join(missing)}\n")
        return 1
    if sys.argv[1:] != [_INSIDE]:
        os.execvp(_APART[0], [*_APART, "sh", "-c", _MOUNTED, "sh", sys.executable, __file__, _INSIDE])  # noqa: S606 - constants
    root = _PLACE
    with ExitStack() as stack:
        folder = stack.enter_context(claimed(root / "demo"))
        settings = {"SIDECAR_BEST_METRIC": "test/accuracy", "SIDECAR_EXPORT_BEST": "2"}
        settings["SIDECAR_TENSORBOARD_DIR"] = str(root / "tensorboard")
        if mlflow := stack.enter_context(mlflow_server(root)):
            settings["SIDECAR_MLFLOW_TRACKING_URI"] = mlflow
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        film = Film(browser)
        run = stack.enter_context(finished_demo(folder, settings, film))
        film.write(FOLDER / LIVE)
        for name, screen, title in (
            (HISTORY, history(run), "sidecar history --plot"),
            (WATCH, run.watched, "sidecar status --watch"),
        ):
            (FOLDER / name).write_text(svg(screen, title=title, name=Path(name).stem))
        status_pages(browser, run)
        with tensorboard_server(root) as url:
            tensorboard_page(browser, url)
        if mlflow:
            mlflow_page(browser, mlflow)
        browser.close()
    return 0


@dataclass(slots=True)
class Film:
    """The status page, frame by frame, without the section *Now*, which comes and goes and would move the curves."""

    browser: Browser
    frames: list[bytes] = field(default_factory=list)
    _page: Page | None = None

    def shoot(self, url: str, *, is_first: bool) -> None:
        """Take a frame of the page at `url`; the first one replaces all before it."""
        if self._page is None:
            context = self.browser.new_context(viewport={"width": 920, "height": 625}, bypass_csp=True)
            self._page = context.new_page()
            self._page.goto(url)
            self._page.add_style_tag(content="#now { display: none }")
        before = [] if is_first else self.frames
        self.frames = [*before, self._page.screenshot()]

    def write(self, path: Path) -> None:
        """Write a loop of `LIVE_SECONDS`, in which the last frame stays for a while."""
        count = min(_FRAMES, len(self.frames))
        chosen = [self.frames[round(number * (len(self.frames) - 1) / (count - 1))] for number in range(count)]
        images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in chosen]
        palette = common_colours(images[-1])  # one for all: else unchanged parts would differ from frame to frame
        drawn = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
        each = round(1000 * (LIVE_SECONDS - _LAST_FRAME_SECONDS) / (count - 1))
        durations = [*[each] * (count - 1), round(1000 * _LAST_FRAME_SECONDS)]
        drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=True)


def common_colours(image: Image.Image) -> Image.Image:
    """Return a palette of the most common colours of an image."""
    pixels = image.tobytes()
    colours = Counter(pixels[place : place + 3] for place in range(0, len(pixels), 3))
    palette = Image.new("P", (1, 1))
    palette.putpalette(b"".join(colour for colour, _ in colours.most_common(_COLOURS)))
    return palette


@contextmanager
def finished_demo(folder: Folder, settings: Mapping[str, str], film: Film) -> Iterator[FinishedRun]:
    """Run the demo with further settings to the end of its training, and yield it while its daemons serve.

    The film begins just before the first result.
    """
    with Children() as children, terminal(folder.root) as screen:
        running = job.make(
            children, folder, FRAMEWORKS["torch"], steps=_CHECKPOINTS * _SAVE_EVERY, save_every=_SAVE_EVERY
        )
        environments = {task: {**environment, **settings} for task, environment in running.environments.items()}
        running = replace(running, environments=environments, pause_seconds=_PAUSE_SECONDS)
        demo = Demo(folder, running, observer_of(folder))
        running.start_daemons()
        watched = ""
        while not demo.is_over():
            demo.observe()
            if running.trained() and not demo.rows:
                raise TimeoutError(
                    "training ended before the first result, so the film would be wrong: is this machine busy?"
                )
            if not running.training and demo.is_ready():
                running.start_training()
                screen.type(f"sidecar status {folder.checkpoints.name} --watch --every 0.5")
            elif running.training and (url := running.daemons[-1].url):
                film.shoot(url, is_first=not demo.rows)
            if len(demo.rows) > _CHECKPOINTS // 2:
                watched = better_watched(screen.read(), watched)
            time.sleep(_POLL_SECONDS)
        demo.sample()  # waits until the gauges, and so the page, show the last checkpoint
        daemon = running.daemons[-1]
        assert daemon.url is not None
        for _ in range(round(_ENDS_SECONDS / _POLL_SECONDS)):
            film.shoot(daemon.url, is_first=False)
            time.sleep(_POLL_SECONDS)
        plan = max(row["plan"] for row in demo.rows)
        yield FinishedRun(folder.checkpoints, daemon.url.rstrip("/"), plan, watched)
        stop([each.child for each in running.daemons], _STOP_SECONDS)


def better_watched(screen: str, before: str) -> str:
    """Return the newer one of two screens of `sidecar status --watch`, or the one with an open evaluation."""
    return screen if "worker-0 restore" in screen or "worker-0 restore" not in before else before


def history(run: FinishedRun) -> str:
    """Return the screen after `sidecar history --plot`."""
    with terminal(run.checkpoints.parent) as screen:
        screen.type(f"sidecar history {run.checkpoints.name} --plot --metric accuracy")
        return until(screen.read, lambda text: "(step)" in text and text.rstrip().endswith("$"))


def status_pages(browser: Browser, run: FinishedRun) -> None:
    """Take pictures of the status page: light, dark, on a phone, and one evaluation."""
    for name, options in STATUS.items():
        page = opened(browser, run.url, **options)
        picture = Image.open(io.BytesIO(page.screenshot(**part_of(page, name))))
        whole = picture.convert("RGB")
        few = whole.quantize(palette=common_colours(whole), dither=Image.Dither.NONE)
        few.save(FOLDER / name, optimize=True)
        page.context.close()
    page = opened(browser, f"{run.url}/#evaluation-{run.plan}", **STATUS["status-light.png"])
    page.wait_for_selector("#details-title")
    page.get_by_text("Examples that changed against the step before").click()
    page.locator(".changed img").first.wait_for()
    page.screenshot(path=FOLDER / EVALUATION)
    page.context.close()


def part_of(page: Page, name: str) -> dict[str, Any]:
    """Return what a picture of the status page shows: all down to the nodes, or the screen of a phone."""
    if name == "status-phone.png":
        return {}
    end = page.get_by_role("heading", name="Worker processes on this node").bounding_box()
    assert end is not None
    return {"full_page": True, "clip": {"x": 0, "y": 0, "width": STATUS[name]["viewport"]["width"], "height": end["y"]}}


def opened(browser: Browser, url: str, **options: Any) -> Page:
    """Return the status page with its curves drawn."""
    page = browser.new_context(**options).new_page()
    page.goto(url)
    page.wait_for_selector(".card")
    for card in page.locator(".card").all():  # each is drawn when it becomes visible
        card.scroll_into_view_if_needed()
        card.locator("canvas").wait_for()
    page.evaluate("scrollTo(0, 0)")
    return page


@contextmanager
def tensorboard_server(root: Path) -> Iterator[str]:
    """Yield the address of a TensorBoard server that shows the daemon's event files."""
    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _TENSORBOARD, "--logdir", "tensorboard", "--host", LOCAL, "--port", str(port)]
    with (
        (root / "tensorboard.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=root) as server,  # noqa: S603 - its words are constants
    ):
        try:
            until((root / "tensorboard.log").read_text, lambda text: "http://" in text)
            yield f"http://{LOCAL}:{port}"
        finally:
            server.kill()


def tensorboard_page(browser: Browser, url: str) -> None:
    """Take a picture of TensorBoard's curves, without its smoothing and its cut at outliers."""
    page = browser.new_context(viewport={"width": 1440, "height": 840}).new_page()
    page.goto(f"{url}/#scalars&_smoothingWeight=0")
    page.get_by_text("Ignore outliers in chart scaling").click()
    page.locator("tf-scalar-card svg path.line").nth(3).wait_for(state="attached")
    page.wait_for_timeout(_MOVES_MILLISECONDS)
    page.screenshot(path=FOLDER / TENSORBOARD)
    page.context.close()


@contextmanager
def mlflow_server(root: Path) -> Iterator[str | None]:
    """Yield the address of an MLflow server, or None if it is not installed."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    tested = importlib.import_module("mlflow_server")
    if not (tested.PROGRAMS / "mlflow").exists():
        sys.stderr.write(
            f"{MLFLOW} is not taken anew: {tested.PROGRAMS} has no MLflow server, which `make screenshots` installs\n"
        )
        yield None
        return
    (root / "mlflow").mkdir()
    with tested.MlflowServer(tested.PROGRAMS / "mlflow", root / "mlflow") as server:
        yield server.uri


def mlflow_page(browser: Browser, url: str) -> None:
    """Take a picture of the run in MLflow, with its metrics."""
    context = browser.new_context(viewport={"width": 1200, "height": 985})
    context.add_init_script("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
    page = context.new_page()
    answer = page.request.post(f"{url}/api/2.0/mlflow/runs/search", data={"experiment_ids": ["0"]})
    identity = answer.json()["runs"][0]["info"]["run_id"]
    page.goto(f"{url}/#/experiments/0/runs/{identity}/model-metrics")
    page.locator(".js-plotly-plot path.js-line").nth(5).wait_for(timeout=PATIENCE_SECONDS * 1000)
    page.wait_for_timeout(_MOVES_MILLISECONDS)
    page.screenshot(path=FOLDER / MLFLOW)
    context.close()


if __name__ == "__main__":
    sys.exit(main())
