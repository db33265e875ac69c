"""Write what the demo of a language model is evaluated with."""

import json
from pathlib import Path

from sidecar.commands.demo.folder import claimed
from sidecar.commands.demo.texts import CODE, PROSE, training_texts, write
from sidecar.settings import load


def test_held_out_texts_and_questions_about_them(tmp_path):
    """None of them is trained on; the right answer is in no fixed place; the settings name both."""
    with claimed(tmp_path / "demo", "python") as folder:
        write(folder)
    settings = load({"checkpoint_dir": folder.checkpoints, "config": folder.settings}, environ={})
    assert settings.lm["tasks"] == [f"next_line_{CODE}", f"next_line_{PROSE}"]
    (texts,) = settings.lm["perplexity"]
    trained = "\0".join(training_texts())
    rows = [json.loads(line) for line in Path(*texts["files"]).read_text().splitlines()]
    assert [sum(row["domain"] == domain for row in rows) for domain in (CODE, PROSE)] == [24, 15]
    assert not [row for row in rows if row["text"] in trained]
    for task in settings.lm["tasks"]:
        questions = [json.loads(line) for line in (folder.root / "data" / f"{task}.jsonl").read_text().splitlines()]
        assert {question["answer"] for question in questions} == {0, 1, 2, 3}
        for question in questions:
            assert question["choices"].count(question["choices"][question["answer"]]) == 1
