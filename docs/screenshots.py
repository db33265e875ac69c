#!/usr/bin/env python3
"""Take the pictures in docs/img/ of a real demo run, in a real browser. `make screenshots` runs this file.

It starts the demo in a temporary folder, waits until every checkpoint was evaluated, and writes the pictures while the
daemons still serve. It needs Chromium (Debian's package `chromium`), and takes about three minutes.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

from sidecar.demo import job
from sidecar.demo.children import Children, stop
from sidecar.demo.folder import claimed
from sidecar.demo.frameworks import FRAMEWORKS
from sidecar.demo.run import Demo

FOLDER: Final = Path(__file__).with_name("img")

_CHECKPOINTS: Final = 12
_SAVE_EVERY: Final = 120  # steps, as in `sidecar demo`
_POLL_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 30.0
_WIDE: Final = {"width": 1200, "height": 900}
_PHONE: Final = {"width": 390, "height": 844}


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Describe a demo whose checkpoints were all evaluated, and whose daemons still serve."""

    checkpoints: Path
    url: str  # of the worker's daemon
    plan: int  # number of the newest evaluation


def main() -> int:
    """Take all pictures, and return the exit code."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("chromium is not installed\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with finished_demo() as run, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        status_pages(browser, run)
        browser.close()
    return 0


@contextmanager
def finished_demo() -> Iterator[FinishedRun]:
    """Run the demo to the end of its training, and yield it while its daemons serve."""
    with (
        tempfile.TemporaryDirectory(prefix="sidecar-screenshots-") as root,
        claimed(Path(root) / "demo") as folder,
        Children() as children,
    ):
        running = job.make(
            children, folder, FRAMEWORKS["tensorflow"], steps=_CHECKPOINTS * _SAVE_EVERY, save_every=_SAVE_EVERY
        )
        demo = Demo(folder, running)
        running.start_daemons()
        while not demo.is_over():
            demo.observe()
            if not running.training and demo.is_ready():
                running.start_training()
            time.sleep(_POLL_SECONDS)
        demo.sample()  # waits until the gauges, and so the page, show the last checkpoint
        daemon = running.daemons[-1]
        assert daemon.url is not None
        yield FinishedRun(folder.checkpoints, daemon.url.rstrip("/"), max(row["plan"] for row in demo.rows))
        stop([each.child for each in running.daemons], _STOP_SECONDS)


def status_pages(browser: Browser, run: FinishedRun) -> None:
    """Take pictures of the status page: light, dark, on a phone, and one evaluation."""
    for name, options in (
        ("status-light", {"viewport": _WIDE, "color_scheme": "light"}),
        ("status-dark", {"viewport": _WIDE, "color_scheme": "dark"}),
        ("status-phone", {"viewport": _PHONE, "color_scheme": "light", "device_scale_factor": 2}),
    ):
        page = opened(browser, run.url, **options)
        page.screenshot(path=FOLDER / f"{name}.png", full_page=name != "status-phone")
        page.context.close()
    page = opened(browser, f"{run.url}/#evaluation-{run.plan}", viewport=_WIDE, color_scheme="light")
    page.wait_for_selector("#details-title")
    page.screenshot(path=FOLDER / "status-evaluation.png")
    page.context.close()


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


if __name__ == "__main__":
    sys.exit(main())
