"""How fluid the status page is with 2,000 evaluations of 20 metrics: a real Chromium, whose frames are timed."""

import math
import random
import shutil
import statistics
from datetime import UTC, datetime, timedelta

from programs import scratch
from served_run import ServedRun, value
from table import Figure, Table

HOW = """A page of a run with 2,000 evaluations × 20 metrics with intervals, all charts in sight, in a headless Chromium
that paints on the processor. The mouse moves over a chart in 200 steps: *hover* moves the cursor of all charts and the
numbers above them, *drag* selects a range. *zoom* draws all charts in another range, by a key. Each row has the
milliseconds of the main thread for a step, those of our scripts among them, and the time between two frames: 16.7 ms
are 60 frames a second."""
COLUMNS = ("gesture", "main thread, ms", "scripts, ms", "median frame, ms", "95 % of frames, ms")
METRICS, STEPS, FRAME = 20, 200, 1000 / 60
_FRAMES = """() => {
  window.frames = [];
  let last = performance.now();
  const next = (now) => { window.frames.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""


def measure(quick):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with scratch() as folder, sync_playwright() as playwright:
        run = _run(folder, 200 if quick else 2000)
        with run.served() as server:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 2400})
            page.goto(server.url)
            page.locator(".card[data-drawn]").nth(METRICS - 1).wait_for()
            gestures = _Gestures(page)
            rows = [("hover", *gestures.moves()), ("drag", *gestures.moves(drags=True)), ("zoom", *gestures.zooms())]
            browser.close()
    figures = [
        Figure("median time between two frames, hover", rows[0][3], FRAME + 0.1, unit=" ms"),
        Figure("median time between two frames, drag", rows[1][3], FRAME + 0.1, unit=" ms"),
        Figure("scripts for a step of the mouse", rows[0][2], 4, unit=" ms"),
    ]
    return Table("The status page: 20 charts of 2,000 evaluations", HOW, COLUMNS, rows, figures)


def _run(folder, evaluations):
    """A run on disk; `folder` is its state directory."""
    run, drawn, begin = ServedRun(folder), random.Random(1), datetime.now(UTC) - timedelta(days=2)
    for number in range(1, evaluations + 1):
        metrics = {}
        for metric in range(METRICS):
            found = 0.95 - 0.45 * math.exp(-number / 300) + drawn.gauss(0, 0.01)
            metrics[f"metric {metric}"] = value(found, lower=found - 0.01, upper=found + 0.01)
        run.plan(f"ckpt-{number}.keras", 100 * number, at=begin + timedelta(minutes=number))
        run.succeed({"test": metrics}, at=begin + timedelta(minutes=number, seconds=20))
    return run


class _Gestures:
    """Moves the mouse and presses keys, and measures what that costs."""

    def __init__(self, page):
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._plot = page.locator(".card .u-over").first.bounding_box()

    def moves(self, *, drags=False):
        """The mouse goes over the first chart from left to right."""
        mouse, plot = self._page.mouse, self._plot
        left, height = plot["x"] + 5, plot["y"] + plot["height"] / 2
        mouse.move(left, height)
        if drags:
            mouse.down()
        self._page.evaluate(_FRAMES)
        before = self._seconds()
        for step in range(STEPS):
            mouse.move(left + (plot["width"] - 10) * step / STEPS, height)
        found = self._per_step(before, STEPS)
        if drags:
            mouse.up()
        return found

    def zooms(self):
        """Keys show half of the range, and all of it again."""
        self._page.locator(".plot").first.focus()
        self._page.evaluate(_FRAMES)
        before, keys = self._seconds(), "+++0" * 3
        for key in keys:
            self._page.keyboard.press(key)
            self._page.wait_for_timeout(100)
        return self._per_step(before, len(keys))

    def _seconds(self):
        found = {each["name"]: each["value"] for each in self._session.send("Performance.getMetrics")["metrics"]}
        return found["TaskDuration"], found["ScriptDuration"]

    def _per_step(self, before, steps):
        spent = [1000 * (now - then) / steps for now, then in zip(self._seconds(), before, strict=True)]
        frames = sorted(self._page.evaluate("window.frames")[2:])
        return *spent, statistics.median(frames), frames[int(0.95 * len(frames))]
