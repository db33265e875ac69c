"""Show one evaluation with everything that the journal knows."""

import pytest
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
    more = {"log": None, "directory": "/data/my ckpts", "best_metric": "test/accuracy"}
    return details_json(entry) | more | neighbours(archive, plan, dict(best))


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


@pytest.mark.parametrize(
    ("difference", "words", "told"),
    [
        ({"rule": "paired", "lower": -0.25, "upper": 0.75}, "+0.25 [-0.25, +0.75]", "0.5 at step 2; example by"),
        ({"rule": "intervals", "lower": 0.125, "upper": 1.0, "note": "<b>"}, "[+0.125, +1]", "intervals: &lt;b&gt;"),
        ({"rule": "value", "lower": None, "upper": None}, "+0.25-0.15", "noise unknown"),
        ({"rule": "none", "note": "the code changed"}, "not comparable-0.15", "the code changed"),
        (None, "+0.25-0.15", "0.5 at step 2"),
    ],
)
def test_differences_have_intervals(run, difference, words, told):
    """In the table itself, with how they were found; the best without one is shown by its number."""
    for plan, number in enumerate((0.9, 0.5, 0.75), 1):
        run.plan(f"ckpt-{plan}", plan)
        run.succeed({"test": {"accuracy": value(number)}})
    details = details_of(run, 3, {("test", "accuracy"): 1}.items())
    details["against"]["test"]["accuracy"]["before"]["difference"] = difference
    page = evaluation_page(details, "mnist", FILES)
    found = Seen(page)
    assert found.open == []
    assert words in found.text
    assert told in page


def test_the_best_is_that_of_best_metric(run):
    """Other metrics have their own best evaluation, with which examples are not compared; other data are told."""
    for plan in (1, 2):
        run.plan(f"ckpt-{plan}", plan)
        run.succeed({"test": {"loss": value(float(plan), "min"), "accuracy": value(plan / 4)}})
    best = {("test", "loss"): 1, ("test", "accuracy"): 2}
    page = evaluation_page(details_of(run, 2, best.items()), "mnist", FILES)
    assert "Examples that changed against the step before" in page
    assert "Examples that changed against the best" not in page
    page = evaluation_page(details_of(run, 2, best.items()) | {"best_metric": "test/loss"}, "mnist", FILES)
    assert "comparison?new=2&amp;old=1" in page.partition("Examples that changed against the best")[0]
    assert "Examples that changed against the best" in page
    run.plan("ckpt-3", 3)
    run.succeed({"test": {"loss": value(0.5, "min"), "accuracy": value(0.5)}}, data="8")
    page = evaluation_page(details_of(run, 3, best.items()), "mnist", FILES)
    assert page.count("not comparable") == 4
    assert "Examples that changed" not in page


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
