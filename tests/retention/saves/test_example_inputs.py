"""Inputs of examples that workers saved, and what somebody else may have put in their place."""

import numpy as np
import pytest
from retention.saves.conftest import COUNT, LABELS, closed, save, scores

from sidecar.retention.saves.example_inputs import inputs_of


@pytest.mark.parametrize(
    "content",
    [
        b'{"place": 0, "text": "cut',
        b'{"place": 0, "text": 5}',
        b'{"place": 0, "image": "PHN2Zy8+"}',  # <svg/>
        b"[" * 100_000,
        b'{"place": 0, "text": "%b"}' % (b"x" * 2001),
        b"\xff",
        None,
    ],
)
def test_hostile_inputs_are_left_out(tmp_path, content):
    """As is a link to another file."""
    old, new = closed(1, COUNT, workers=1), closed(2, COUNT - 1, workers=1)
    save(tmp_path, old, {"y": LABELS, "predictions": scores(COUNT)})
    guesses = np.eye(10, dtype=np.float32)[np.where(np.arange(COUNT) > 0, LABELS, (LABELS + 1) % 10)]
    save(tmp_path, new, {"y": LABELS, "predictions": guesses}, inputs={0: "a text"})
    assert inputs_of(tmp_path, (new, old), "test", [0]) == {0: "a text"}
    (file,) = tmp_path.glob("evaluations/**/inputs.jsonl")
    if content is None:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_bytes(content)
    assert inputs_of(tmp_path, (new, old), "test", [0]) == {}
