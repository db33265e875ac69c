"""Rows of the journal as people see them while a demo runs."""

import io

from rich.console import Console

from sidecar.commands.demo.table import WIDE, evaluations, sentence, table

PHASES = {"detect": 0.05, "agree": 0.01, "join": 2.0, "restore": 0.1, "evaluate": 0.5, "reduce": 0.3, "save": 0.2}
NUMBERS = {"accuracy": {"value": 0.9421, "hex": "-"}, "loss": {"value": 0.2034, "hex": "-"}}


def row(**changes):
    return {
        "checkpoint": "ckpt-120",
        "step": 120,
        "status": "succeeded",
        "final": True,
        "kind": None,
        "workers": 2,
        "examples": {"test": 397},
        "metrics": {"test": NUMBERS},
        "phases": {**PHASES, "publish": 0.0},
        "completed_at": "2026-01-31T12:00:03.500Z",
    } | changes


FAILED = row(status="failed", kind="stalled", final=False, examples={}, metrics={}, phases={})
WRITTEN_AT = {"ckpt-120": 1769860800.0}  # 2026-01-31T12:00:00Z


def rendered(shown, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(shown, width))
    return console.file.getvalue().splitlines()


def test_lag_is_from_the_last_byte_written_to_the_result():
    """A checkpoint written at noon and evaluated 3.5 s later has a lag of 3.5 s."""
    (shown,) = evaluations([row()], WRITTEN_AT)
    assert shown.lag == 3.5


def test_no_lag_is_negative():
    """Clocks of files and of records may differ by a tick."""
    (shown,) = evaluations([row()], {"ckpt-120": WRITTEN_AT["ckpt-120"] + 3.501})
    assert shown.lag == 0


def test_lag_of_a_checkpoint_whose_writing_nobody_saw_is_left_open():
    """Then a dash stands in its place, not a guess."""
    (shown,) = evaluations([row()], {})
    assert shown.lag is None
    assert "lag - s" in sentence(shown)


def test_wide_table_has_a_column_for_each_phase():
    """At 100 columns every phase of the contract is there, and every number in its place."""
    head, line, *_ = rendered(evaluations([row()], WRITTEN_AT), WIDE)
    names = "step accuracy loss examples workers detect agree join restore evaluate reduce save publish lag"
    assert " ".join(head.split()) == names
    assert " ".join(line.split()) == "120 0.9421 0.2034 397 2 0.05 0.01 2.00 0.10 0.50 0.30 0.20 0.00 3.50"


def test_narrow_table_adds_phases_up():
    """At 80 columns what belongs together is one number; the caption says what."""
    head, line, *caption = rendered(evaluations([row()], WRITTEN_AT), 80)
    assert " ".join(head.split()) == "step accuracy loss examples workers wait restore evaluate save publish lag"
    assert " ".join(line.split()) == "120 0.9421 0.2034 397 2 2.06 0.10 0.50 0.50 0.00 3.50"
    assert "wait: detect, agree, join" in " ".join(caption)


def test_nothing_is_cut_off():
    """Also on a machine so slow that seconds have two digits and the lag three."""
    slow = evaluations(
        [row(step=9600, phases=dict.fromkeys(PHASES, 12.34))], {"ckpt-120": WRITTEN_AT["ckpt-120"] - 120}
    )
    for width in (80, WIDE):
        lines = rendered(slow, width)
        assert all(len(line) <= width and "…" not in line for line in lines)
        assert lines[1].split()[-1] == "124"


def test_table_keeps_its_shape_when_numbers_come():
    """The empty table's head is the filled one's, so that nothing moves."""
    for width in (80, WIDE):
        assert rendered([], width)[0] == rendered(evaluations([row()], WRITTEN_AT), width)[0]


def test_failed_attempt_has_a_line_without_numbers():
    """It stands there as failed, and as a sentence with its kind."""
    shown = evaluations([FAILED, row()], WRITTEN_AT)
    assert rendered(shown, WIDE)[1].split() == ["120", "failed", "2"]
    assert sentence(shown[0]) == "step 120: failed: stalled"


def test_sentence_says_everything():
    """Off a terminal one line holds what the table holds."""
    (shown,) = evaluations([row()], WRITTEN_AT)
    assert sentence(shown) == (
        "step 120: accuracy 0.9421, loss 0.2034, 397 examples, 2 workers, lag 3.50 s (detect 0.05, agree 0.01, "
        "join 2.00, restore 0.10, evaluate 0.50, reduce 0.30, save 0.20, publish 0.00)"
    )
