import json
from dataclasses import replace

import pytest
from heartbeats import make_heartbeat
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import NewerSchemaError, RecordError
from sidecar.protocol.codec import dumps, from_json, loads
from sidecar.protocol.heartbeat import Heartbeat, Slot, WorkerProgress
from sidecar.protocol.records import SCHEMA, Checkpoint, Member, Outcome, Plan, Result, Settlement, Value
from sidecar.protocol.states import FAILURE_CLASSES
from sidecar.system.clock import timestamp

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
    st.builds(Heartbeat, schema=st.just(SCHEMA)),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)

PLAN = Plan(
    plan=1,
    run="r",
    nonce="n",
    checkpoint=Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf"),
    attempt=1,
    members=(Member(0, "node", "w", "h:1"),),
    settles=(Settlement(name="old", digest="0" * 64, step=None, verdict="skipped", reason="newer ones wait"),),
    task="t",
    proposer="node",
    proposed_at="now",
)


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
    """What is written is one line of strict JSON with a schema, and what is read back is equal."""
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
    """Whoever repairs a file by hand learns where to look."""
    with pytest.raises(RecordError, match=where):
        from_json(Plan, strict(dumps(PLAN)) | change)


def test_the_place_of_an_error_is_named_within_a_mapping():
    """A number that is none is found wherever it stands."""
    value = {"value": 1.0, "hex": "0x1p+0"} | {"lower": "low"}
    result = {"group": "g", "workers": 1, "examples": {}, "metrics": {"test": {"loss": value}}}
    with pytest.raises(RecordError, match=r"Result\.metrics\.test\.loss\.lower: .*'low'"):
        from_json(Result, result)


def test_a_heartbeat_of_an_older_version_tells_no_doing():
    """The field came later; that it is missing is no reason to think that its node is gone."""
    beat = make_heartbeat(doing=(WorkerProgress("w", "join"),))
    assert loads(Heartbeat, dumps(beat)) == beat
    written = json.loads(dumps(beat))
    del written["doing"]
    assert loads(Heartbeat, json.dumps(written).encode()) == replace(beat, doing=None)


def test_unknown_fields_are_ignored_and_a_newer_schema_is_not():
    """A later version may add fields; only when it says so may this one no longer act."""
    record = strict(dumps(PLAN))
    assert from_json(Plan, record | {"added_later": 1}) == PLAN
    with pytest.raises(NewerSchemaError, match=r"Plan .*schema 2\b"):
        from_json(Plan, record | {"schema": 2})
    with pytest.raises(RecordError, match=r"Plan\.schema"):
        from_json(Plan, record | {"schema": "2"})


def test_every_kind_of_failure_has_somebody_to_blame():
    """The closed list behind the label has no empty class."""
    assert set(FAILURE_CLASSES.values()) == {"checkpoint", "group", "corrupt", "vanished"}


@pytest.mark.parametrize(("seconds", "text"), [(1e18, "9999-12-31T"), (-1e18, "0001-01-02T"), (0.5, "1970-01-01T00:")])
def test_any_time_that_a_file_can_have_is_written(seconds, text):
    """Some filesystems keep 64 bits of seconds; the year 10,000 would end the daemon that shows it."""
    assert timestamp(seconds).startswith(text)


def test_the_parts_of_a_heartbeat_have_no_name_in_its_file():
    """Daemons of older releases look for the fields where they always were."""
    beat = make_heartbeat(
        plan=3,
        outcome=2,
        profile="p",
        joined_profile="j",
        doing=(),
        unreadable=("a@1",),
        sees=("b@2",),
        sees_more=True,
    )
    assert dumps(beat) == (
        b'{"run":"r","node":"n1","incarnation":"i","beat":1,"role":"worker","role_source":"setting","page_url":null,'
        b'"version":"1","state":"ready",'
        b'"task":"t","plan":3,"outcome":2,"segments":0,"slots":[],"profile":"p","joined_profile":"j","evaluation_code":null,"doing":[],'
        b'"unreadable":["a@1"],"sees":["b@2"],"sees_more":true,"exports":null,"schema":1}'
    )
    assert loads(Heartbeat, dumps(beat)) == beat


@pytest.mark.parametrize(("field", "value"), [("outcome", None), ("sees", "b@2")])
def test_a_wrong_field_of_a_part_is_named_as_in_the_file(field, value):
    """People look for it there."""
    written = json.loads(dumps(make_heartbeat(sees=("b@2",)))) | {field: value}
    with pytest.raises(RecordError, match=rf"Heartbeat\.{field}\b"):
        from_json(Heartbeat, written)
