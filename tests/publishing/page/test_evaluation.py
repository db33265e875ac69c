"""Show one evaluation with everything that the journal knows."""

from publishing.page.conftest import FILES, Seen
from served_run import value

from sidecar.protocol.records import Slice
from sidecar.publishing.evaluation_archive.details import details_json
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations
from sidecar.publishing.evaluation_archive.neighbours import neighbours
from sidecar.publishing.page.evaluation import evaluation_page, phases_picture


def details_of(run, plan, best=()):
    """The details of an evaluation, as the page gets them."""
    archive = ArchivedEvaluations()
    for entry in run.history.entries:
        archive.add(entry)
    entry = next(each for each in run.history.entries if each.plan.plan == plan)
    return details_json(entry) | {"log": None, "directory": "/data/my ckpts"} | neighbours(archive, plan, dict(best))


def test_the_page_of_an_evaluation(run):
    """Everything the journal knows, and notes at the top."""
    run.plan("ckpt-1", 100)
    classes = {"test": {"recall": {"cat": value(0.25), "dog": value(0.75)}}}
    run.succeed({"test": {"accuracy": value(0.5)}}, classes=classes, changed=("test",), notes=("read this",))
    details = details_of(run, 1)
    assert "keep_states" in evaluation_page(details | {"states_removed": True}, "mnist", FILES)
    found = Seen(evaluation_page(details, "mnist", FILES))
    assert "keep_states" not in found.text
    for words in ("read this", "do not compare", "0.25", "dog", "3.20 s", "10.0.0.2:21000", "9" * 64, "tensorflow"):
        assert words in found.text
    assert found.open == []


def test_an_evaluation_is_compared_with_the_one_before_and_the_best(run):
    """Its page leads to both, and names the command that tells whether the difference is more than chance."""
    for plan, number in enumerate((0.9, 0.5, 0.75), 1):
        run.plan(f"ckpt-{plan}", plan)
        run.succeed({"test": {"accuracy": value(number)}})
    found = Seen(evaluation_page(details_of(run, 3, {("test", "accuracy"): 1}.items()), "mnist", FILES))
    assert found.links["+0.25"] == "evaluation?plan=2"
    assert found.links["-0.15"] == "evaluation?plan=1"
    assert found.links["← previous"] == "evaluation?plan=2"
    assert "next →" not in found.links
    assert "sidecar compare '/data/my ckpts' best ckpt-3" in found.text


def test_the_worst_class_and_slice_come_first(run):
    """By the first metric and its direction; what has no number comes last, and one from 0 to 1 has a bar."""
    slices = {
        "test": {
            name: Slice(examples=n, metrics={"loss": value(number, "min")})
            for name, n, number in (("day", 5, 0.5), ("night", 7, 3.0), ("dawn", 0, float("nan")))
        }
    }
    classes = {"test": {"recall": {"cat": value(0.75), "dog": value(0.25)}}}
    run.plan("ckpt-1", 1)
    numbers = {"recall": value(0.5), "loss": value(2.0, "min")}
    run.succeed({"test": numbers}, classes=classes, slices=slices)
    page = evaluation_page(details_of(run, 1), "mnist", FILES)
    found = Seen(page)
    assert found.open == []
    places = [found.text.index(name) for name in ("dog", "cat", "night", "day", "dawn")]
    assert places == sorted(places)
    assert '<rect class="value" width="25.00" height="12"/>' in page
    assert page.count('class="bar"') == 3


def test_pictures_name_what_they_show():
    """For readers that do not see them."""
    bar = phases_picture({"restore": 1.0, "evaluate": 3.0, "save": 0.0})
    assert 'width="750.00"' in bar
    assert "evaluate: 3.000 s" in bar
    assert phases_picture({"restore": 0.0})
    assert [f'class="phase-{place}"' in bar for place in (3, 4, 0)] == [True, True, False]  # whatever else is there
