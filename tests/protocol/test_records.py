"""Write records as one line of JSON each, and read them back."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st
from records import make_plan, settlement_of

from sidecar.protocol.codec import dumps, from_json, loads
from sidecar.protocol.heartbeat import AboutNode, Heartbeat
from sidecar.protocol.records import SCHEMA, Checkpoint, Outcome, Plan, Result, Value
from sidecar.protocol.states import FAILURE_CLASSES

FINITE = st.floats(allow_nan=False, allow_infinity=False)

VALUES = st.builds(Value, value=st.none() | FINITE, lower=st.none() | FINITE, upper=st.none() | FINITE)

SECONDS = st.dictionaries(st.text(), FINITE, max_size=3)

RESULTS = st.builds(
    Result,
    metrics=st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=2), max_size=2),
    phases=SECONDS,
)

RECORDS = st.one_of(
    st.builds(Plan, schema=st.just(SCHEMA)),
    st.builds(Outcome, result=st.none() | RESULTS, schema=st.just(SCHEMA)),
    st.builds(
        Heartbeat,
        about=st.from_type(AboutNode).filter(lambda about: about.load is None or math.isfinite(about.load)),
        schema=st.just(SCHEMA),
    ),
)

OLD = Checkpoint(name="old", digest="0" * 64, step=None, format="tf")

PLAN = make_plan(settles=(settlement_of(OLD, "skipped"),))


def test_a_plan_of_a_version_that_counted_nothing_is_the_first():
    """So that all eval sets take part, as they did."""
    written = strict(dumps(PLAN))
    del written["evaluated"]
    assert from_json(Plan, written) == PLAN


def strict(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


@given(record=RECORDS)
def test_every_record_survives_the_round_trip(record):
    """A record is written as one line of strict JSON with a schema, and reading it back gives an equal record."""
    data = dumps(record)
    assert b"\n" not in data
    assert strict(data)["schema"] == SCHEMA
    assert loads(type(record), data) == record


@given(name=st.text(st.characters(), min_size=1))
def test_any_file_name_can_be_recorded(name):
    """Names that are not UTF-8 arrive as lone surrogates; they are written as valid UTF-8, and make a safe folder."""
    checkpoint = Checkpoint(name=name, digest="d" * 64, step=None, format="tf")
    data = dumps(checkpoint)
    data.decode()
    again = loads(Checkpoint, data)
    assert again.name.encode("utf-16", "surrogatepass") == name.encode("utf-16", "surrogatepass")
    assert checkpoint.folder.isascii()
    assert "/" not in checkpoint.folder
    assert len(checkpoint.folder) <= 213


def test_folders_of_different_checkpoints_differ():
    """The same name with other content has another folder, and a path prefix makes one folder."""
    assert (
        Checkpoint(name="run/ckpt-5", digest="0123456789abcdef", step=5, format="tf").folder
        == "run%2Fckpt-5@0123456789ab"
    )
    assert (
        Checkpoint(name="c", digest="a" * 64, step=5, format="tf").folder
        != Checkpoint(name="c", digest="b" * 64, step=5, format="tf").folder
    )
    long = "\u6a21\u578b" * 40  # nine characters each, once they are safe
    assert (
        Checkpoint(name=f"{long}-5", digest="a" * 64, step=5, format="tf").folder
        != Checkpoint(name=f"{long}-6", digest="a" * 64, step=6, format="tf").folder
    )


def test_every_kind_of_failure_has_somebody_to_blame():
    """The closed list behind the label has no empty class."""
    assert set(FAILURE_CLASSES.values()) == {"checkpoint", "group", "corrupt", "vanished"}
