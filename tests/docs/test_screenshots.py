"""The pictures of the pages are those that docs/screenshots.py takes, and each shows something."""

import base64
import re
import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = DOCS / "img"
SHOWN = re.compile(r"(?:\]\(|src=\")(?:\.\./)*img/([^)\"]+)")
MOST_BYTES = 200_000
MOST_BYTES_MOVING = 600_000
FEWEST_FRAMES = 12  # one for each checkpoint
FEWEST_COLOURS = 20  # in each quarter of a picture: a frame with a word and smoothed edges has more
COUNT = """async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    const [width, height] = [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const [right, low] = [width >> 1, height >> 1];
    const count = (x, y) => new Set(new Uint32Array(context.getImageData(x, y, right, low).data.buffer)).size;
    return [[width, height], [count(0, 0), count(right, 0), count(0, low), count(right, low)]];
}"""


@pytest.fixture(scope="module")
def screenshots():
    """The program that takes the pictures."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import screenshots

        yield screenshots


@pytest.fixture(scope="module")
def counted(needs):
    """Count the colours of each quarter of a PNG, and return its size, too, as a browser sees both."""
    path = needs("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        page = browser.new_page()
        yield lambda png: page.evaluate(COUNT, f"data:image/png;base64,{base64.b64encode(png).decode()}")
        blank = page.screenshot()
        assert page.evaluate(COUNT, f"data:image/png;base64,{base64.b64encode(blank).decode()}")[1] == [1, 1, 1, 1]
        browser.close()


def test_each_picture_is_taken_and_shown(screenshots):
    """The program, the folder and the pages name the same pictures, and none is too large for a page."""
    shown = {name for page in DOCS.rglob("*.md") for name in SHOWN.findall(page.read_text())}
    assert shown == {path.name for path in IMAGES.iterdir()} == set(screenshots.PICTURES)
    most = {screenshots.LIVE: MOST_BYTES_MOVING}
    sizes = {path.name: path.stat().st_size for path in IMAGES.iterdir()}
    assert {name: size for name, size in sizes.items() if size >= most.get(name, MOST_BYTES)} == {}


def test_the_moving_picture_is_a_short_loop(screenshots):
    """It lasts about six seconds, repeats for ever, and hardly any frame is like the one before it."""
    pil = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with pil.open(IMAGES / screenshots.LIVE) as moving:
        assert moving.n_frames >= FEWEST_FRAMES
        assert moving.info["loop"] == 0
        milliseconds = 0
        for number in range(moving.n_frames):
            moving.seek(number)
            milliseconds += moving.info["duration"]
    assert milliseconds / 1000 == pytest.approx(screenshots.LIVE_SECONDS, abs=0.5)


def test_the_page_of_all_places(screenshots):
    """It shows one picture at least of each program that shows results."""
    names = set(SHOWN.findall((DOCS / "how-to/see-results.md").read_text()))
    assert {screenshots.TENSORBOARD, screenshots.MLFLOW, screenshots.HISTORY, screenshots.WATCH} <= names
    assert names & set(screenshots.STATUS)


@pytest.mark.seconds
def test_no_part_is_blank(counted):
    """Each quarter of each picture has many colours."""
    for path in sorted(IMAGES.glob("*.png")):
        png = path.read_bytes()
        size, colours = counted(png)
        assert size == list(struct.unpack(">II", png[16:24])), path.name
        assert min(colours) >= FEWEST_COLOURS, (path.name, colours)


def test_the_terminal_shows_its_run(screenshots):
    """A screen names the metric and both workers or the command, and loads nothing from elsewhere."""
    for name, words in (
        (screenshots.HISTORY, ("--plot", "test/accuracy")),
        (screenshots.WATCH, ("accuracy", "worker-0")),
    ):
        svg = (IMAGES / name).read_text()
        text = "".join(ET.fromstring(svg).itertext()).replace("\xa0", " ")
        assert "digits" in text
        assert "/tmp" not in text
        assert [word for word in words if word not in text] == []
        assert re.findall(r"url\((?!#)", svg) == []
