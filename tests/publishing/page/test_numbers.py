"""Show the newest and the best numbers."""

from publishing.page.conftest import seen
from served_run import value


def test_numbers_newest_and_best(run):
    """With direction, interval, and how far the newest is from the best."""
    for number in (0.9, 0.8):
        run.plan(f"ckpt-{number}", round(1000 * number))
        run.succeed({"test": {"accuracy": value(number, lower=number - 0.1, upper=1.0), "loss": value(0.5, "min")}})
    text = seen(run)
    for words in ("more is better", "less is better", "0.7 to 1", "-0.1", "step 900", "ckpt-0.9", "10000"):
        assert words in text
