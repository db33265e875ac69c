"""Read records from any bytes: a record, or an error that names the field."""

import json
import secrets
import sys

import pytest
from heartbeats import make_heartbeat
from hypothesis import given
from hypothesis import strategies as st
from records import make_plan, settlement_of

from sidecar.errors import NewerSchemaError, RecordError
from sidecar.protocol.codec import dumps, from_json, loads
from sidecar.protocol.heartbeat import Heartbeat, Slot
from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan, Result, Value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)

OLD = Checkpoint(name="old", digest="0" * 64, step=None, format="tf")

PLAN = make_plan(settles=(settlement_of(OLD, "skipped"),))


def strict(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


@given(data=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_lies_in_a_file_reading_it_fails_only_with_a_record_error(data):
    """Garbage ends as one sentence, never as a traceback of the parser."""
    for cls in (Plan, Outcome, Heartbeat, Slot):
        with pytest.raises(RecordError, match=cls.__name__):
            loads(cls, data)


@given(field=st.sampled_from(sorted(strict(dumps(PLAN)))), value=JSON)
def test_a_field_that_is_wrong_is_named(field, value):
    """A record with one field replaced is either a record or refused by the name of that field."""
    try:
        record = from_json(Plan, strict(dumps(PLAN)) | {field: value})
    except RecordError as error:
        assert field in str(error)  # noqa: PT017 - most values are refused, some are fine
    else:
        assert loads(Plan, dumps(record)) == record


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"value":1e999,"hex":"inf"}', "Value.value: expected float"),
        ('{"value":' + "9" * 400 + ',"hex":"inf"}', "Value.value: expected float"),
        ('{"value":NaN,"hex":"nan"}', "NaN is not JSON"),
        ('{"value":-Infinity,"hex":"-inf"}', "-Infinity is not JSON"),
        ('{"value":true,"hex":"1"}', "Value.value: expected float"),
        ('{"value":"1","hex":"1"}', "Value.value: expected float"),
        ('{"value":1}', "Value.hex: missing"),
        ('{"value":1,"hex":null}', "Value.hex: expected str"),
        ('{"value":1,"hex":"1","goal":"most"}', "Value.goal: expected"),
        ("[" * 60_000, "Value record has more than 16384 values"),
        ('{"value":' + "9" * 5000 + ',"hex":"1"}', "Value record has a number of more than 400 digits"),
    ],
)
def test_what_is_no_number_of_this_format_is_refused(text, sentence):
    """Strict JSON has no infinity by any spelling, and a boolean is no number."""
    with pytest.raises(RecordError, match=sentence):
        loads(Value, text.encode())


def test_a_whole_number_that_no_float_can_hold_is_refused():
    """A gauge of it would let every scrape fail."""
    plan = strict(dumps(PLAN))
    assert from_json(Plan, plan | {"attempt": 10**300}).attempt == 10**300
    with pytest.raises(RecordError, match=r"Plan\.attempt: expected int"):
        from_json(Plan, plan | {"attempt": 10**309})


def test_an_infinite_number_is_not_written():
    """The programmer hears of it; the file would be no JSON."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(Value(value=float("inf"), hex="inf"))


def test_a_whole_number_stands_for_a_float():
    """Other programs write 1 for 1.0, but 1.0 is no count."""
    value = loads(Value, b'{"value":1,"hex":"0x1p+0"}')
    assert isinstance(value.value, float)
    with pytest.raises(RecordError, match=r"Member\.rank: .*\bint\b.*'1\.0'"):
        loads(Member, b'{"rank":1.0,"node":"n","worker":"w","address":"a"}')


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"members": [{"rank": 0, "node": "n", "worker": "w"}]}, r"Plan\.members\[0\]\.address: missing"),
        ({"settles": [{"verdict": "lost"}]}, r"Plan\.settles\[0\]\.name: missing"),
        ({"checkpoint": "ckpt-5"}, r"Plan\.checkpoint: .*'ckpt-5'"),
        ({"settles": {}}, r"Plan\.settles: .*'{}'"),
    ],
)
def test_the_place_of_an_error_is_named_to_the_leaf(change, where):
    """A person who repairs a file by hand learns where to look."""
    with pytest.raises(RecordError, match=where):
        from_json(Plan, strict(dumps(PLAN)) | change)


def test_the_place_of_an_error_is_named_within_a_mapping():
    """A number that is none is found wherever it stands."""
    value = {"value": 1.0, "hex": "0x1p+0"} | {"lower": "low"}
    result = {"group": "g", "workers": 1, "examples": {}, "metrics": {"test": {"loss": value}}}
    with pytest.raises(RecordError, match=r"Result\.metrics\.test\.loss\.lower: .*'low'"):
        from_json(Result, result)


def test_unknown_fields_are_ignored_and_a_newer_schema_is_not():
    """A later version may add fields; only when it says so may this one no longer act."""
    record = strict(dumps(PLAN))
    assert from_json(Plan, record | {"added_later": 1}) == PLAN
    with pytest.raises(NewerSchemaError, match=r"Plan .*schema 2\b"):
        from_json(Plan, record | {"schema": 2})
    with pytest.raises(RecordError, match=r"Plan\.schema"):
        from_json(Plan, record | {"schema": "2"})


def test_texts_of_a_journal_are_not_interned():
    """The table of interned texts grows by each, and hardly shrinks. Nodes have equal texts, and hold them all."""
    plan = loads(Plan, dumps(make_plan(nonce=secrets.token_hex(16))))
    heartbeat = loads(Heartbeat, dumps(make_heartbeat(version=secrets.token_hex(16))))
    nonce, version = ("".join(list(text)) for text in (plan.nonce, heartbeat.about.version))
    assert sys.intern(nonce) is nonce
    assert sys.intern(version) is heartbeat.about.version
