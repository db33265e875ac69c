"""Report a trial of the newest checkpoint while training deletes it."""

from fakes import save
from records import make_result

from sidecar.commands.check.report import summary
from sidecar.errors import EvaluationFailedError
from sidecar.protocol.records import Value


def result():
    measured = {"examples": {"test": 8}, "metrics": {"test": {"a": Value(value=0.5, hex=(0.5).hex())}}}
    return make_result(notes=("the model draws random numbers",), **measured)


def lose(place, checkpoint):
    for path in place.glob(f"{checkpoint.name}.*"):
        path.unlink()
    raise EvaluationFailedError(f"vanished: {checkpoint.name} is gone")


def test_the_next_checkpoint_is_tried_if_training_deletes_one(place, try_task):
    """Its failure is nobody's fault; the notes of an evaluation are told."""
    save(place, 1)
    asked = []

    def evaluate(checkpoint, _):
        asked.append(checkpoint.name)
        if len(asked) == 1:
            save(place, 2)
            lose(place, checkpoint)
        return result()

    found = try_task(evaluate)
    assert asked == ["ckpt-1", "ckpt-2"]
    assert [finding.ok for finding in found] == [True] * 4
    assert "ckpt-2 (step 2) was restored" in found[0].text
    assert found[1].text == "note: the model draws random numbers"
    assert summary(found) == "No problem found."


def test_training_that_deletes_each_of_them_is_no_failure(place, try_task):
    """The last line of the report names the checkpoint that could not be tried because training deleted it."""
    save(place, 1)

    def evaluate(checkpoint, _):
        save(place, checkpoint.step + 1)
        lose(place, checkpoint)

    (finding,) = try_task(evaluate)
    assert (finding.ok, finding.tried) == (True, False)
    assert "ckpt-3" in summary([finding])
