"""The files of the page are what they claim to be."""

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from sidecar.publishing.page import static_files as module
from sidecar.publishing.page.static_files import UPLOT_SHA256, UPLOT_VERSION, static_base, static_files

FOLDER = Path(module.__file__).with_name("static")
SCRIPTS = sorted(path for path in FOLDER.glob("*.js") if path.name not in UPLOT_SHA256)


def test_uplot_is_as_it_was_published():
    """Byte by byte, with its license, and of the version that we name."""
    found = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in UPLOT_SHA256}
    assert found == UPLOT_SHA256
    assert f"(v{UPLOT_VERSION})" in (FOLDER / "uPlot.iife.min.js").read_text()[:200]
    assert "MIT License" in (FOLDER / "uPlot.LICENSE").read_text()


def test_every_file_is_served():
    """There is nothing in the folder that has no type."""
    served = {path.rpartition("/")[2] for path in static_files()}
    assert served == {path.name for path in FOLDER.iterdir()}
    assert all(path.startswith(f"{static_base()}/") for path in static_files())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_our_scripts_are_sound(path, needs, tmp_path):
    """Node accepts each as a module. None makes markup or code of texts, and each function is described."""
    copy = tmp_path / f"{path.stem}.mjs"
    copy.write_bytes(path.read_bytes())
    subprocess.run([needs("node"), "--check", copy], check=True)
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, which is not loaded
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?:", text)
    undescribed = re.findall(r"(?<!\*/\n)^(?:export )?(?:async )?function (\w+)", text, re.MULTILINE)
    assert undescribed == []
    assert text.startswith("// ")


def test_scripts_load_each_other_from_their_own_folder():
    """Only by relative names of files that are there."""
    for path in SCRIPTS:
        for target in re.findall(r'from "([^"]+)"', path.read_text()):
            assert target.startswith("./")
            assert (FOLDER / target).is_file()


def test_the_style_sheet_loads_nothing():
    """It has no address of anything."""
    assert "url(" not in (FOLDER / "page.css").read_text()
    assert "@import" not in (FOLDER / "page.css").read_text()
