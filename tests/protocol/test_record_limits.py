"""Show what a record may hold at most, and what a reader pays for one that holds more."""

import contextlib
import json
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import failure, make_plan

from sidecar.errors import NewerSchemaError, RecordError, VoidRecordError
from sidecar.protocol.codec import cut_text, dumps, loads
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.record_limits import DIGITS, NESTING, OUTCOME, RecordLimits, excess
from sidecar.protocol.records import Member, Outcome, Plan, Settlement

FAILED = failure()
PLAN = make_plan()
LIMITS = RecordLimits(size=1000, values=100)


def with_unknown(record, value):
    """Return a record with one more field, whose value is any JSON."""
    return dumps(record)[:-1] + b',"added_later":' + value + b"}"


def nested(depth):
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" + b" " * 999 + b"]", "1000 bytes"),
        (b"[" + b"0," * 99 + b"0]", "100 values"),
        (b"[" + b"[]," * 50 + b"0]", "100 values"),
        (nested(NESTING + 1), f"{NESTING} lists"),
        (b'[{"a":' * 20 + b"0" + b"}]" * 20, f"{NESTING} lists"),
        (b"[1" + b"0" * DIGITS + b"]", f"{DIGITS} digits"),
        (b"-0." + b"1" * (DIGITS + 1), f"{DIGITS} digits"),
    ],
)
def test_bytes_that_break_a_limit(data, why):
    """They are counted before anything is parsed."""
    assert why in excess(data, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"0," * 97 + b"0]",
        nested(NESTING),
        b"[" * 3 + b"]," * 2 + b"[]]",
        b'"' + b"," * 900 + b'"',
        b'"' + b"[" * 900 + b'"',
        b'["\\"' + b"[" * 400 + b'\\\\"]',
        b'["' + b"\\\\" * 40 + b'","' + b"{" * 200 + b'"]',
        b'"' + b"7" * 900 + b'"',
        b'"' + b"[" * 900,  # torn within a text: damaged, and not too deep
        b'"\\',
        b"",
    ],
)
def test_texts_count_for_nothing_but_their_bytes(data):
    """A message may hold any brackets, commas and digits; so may the rest of a torn one."""
    assert excess(data, LIMITS) is None


@given(
    data=st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"1" * 30, b"x"]), max_size=80).map(
        b"".join
    )
)
def test_a_part_breaks_no_limit_that_the_whole_does_not_break(data):
    """A record that storage shows in part for a moment is never taken for a void one."""
    if excess(data, LIMITS) is None:
        assert [end for end in range(len(data)) if excess(data[:end], LIMITS) is not None] == []


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    )
)
def test_values_and_nesting_are_counted_exactly(value):
    """Independently of the parser that would count them afterwards."""

    def count(part):
        parts = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else ()
        return isinstance(part, dict | list) + max(0, len(parts) - 1) + sum(map(count, parts))

    data = json.dumps(value, ensure_ascii=False).encode()
    values = 1 + count(value)
    assert excess(data, RecordLimits(size=10**6, values=values)) is None
    assert excess(data, RecordLimits(size=10**6, values=values - 1)) is not None


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 690_000 + b"0]",
        b"[" + b'"",' * 600_000 + b"0]",
        b"{" + b",".join(b'"%x":{}' % number for number in range(45_000)) + b"}",
        b"{" + b",".join(b'"%05x":1.5' % number for number in range(95_000)) + b"}",
        b"[" + b",".join(f'"{number:x}é"'.encode() for number in range(95_000)) + b"]",
        b'"' + b"a" * 2_000_000 + "😀".encode() + b'"',
        b'"' + rb"\"" * 1_000_000 + b'"',
        b"9" * 2_000_000,
        nested(1_000_000),
    ],
    ids=["lists", "quotes", "objects", "numbers", "texts", "wide", "escapes", "digits", "depth"],
)
def test_a_forged_outcome_costs_little(value):
    """An unknown field costs at most 20 MB and half a second, and an error only of the kind that is known."""
    data = with_unknown(FAILED, value)[: OUTCOME.size + 1]
    begun = time.process_time()
    try:
        assert loads(Outcome, data) == FAILED
    except VoidRecordError as error:
        assert "Outcome record has" in str(error)  # noqa: PT017 - either is right
    assert time.process_time() - begun < 0.5
    tracemalloc.start()
    try:
        with contextlib.suppress(VoidRecordError):
            loads(Outcome, data)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"message": "x" * 65_537}, r"Outcome\.message: .*65537"),
        ({"odd": ["n"] * 4097}, r"Outcome\.odd: .*4097"),
        ({"odd": ["n" * 4097]}, r"Outcome\.odd\[0\]: .*4097"),
        ({"rank": 10**309}, r"Outcome\.rank: expected int"),
    ],
)
def test_a_part_that_is_too_large_is_named(change, where):
    """It is void and not damaged, because no writer makes it and no fault of storage does."""
    with pytest.raises(VoidRecordError, match=where):
        loads(Outcome, json.dumps(json.loads(dumps(FAILED)) | change).encode())


def test_a_wrong_type_is_damage_and_no_void_record():
    """A record with another type in a field may have been another record before."""
    for change in ({"message": 3}, {"odd": {}}, {"status": "lost"}):
        with pytest.raises(RecordError) as refused:
            loads(Outcome, json.dumps(json.loads(dumps(FAILED)) | change).encode())
        assert not isinstance(refused.value, VoidRecordError)


def test_a_newer_schema_is_told_before_a_part_that_is_too_large():
    """A later release may allow more."""
    with pytest.raises(NewerSchemaError, match="schema 2"):
        loads(Outcome, json.dumps(json.loads(dumps(FAILED)) | {"schema": 2, "message": "x" * 70_000}).encode())


@pytest.mark.parametrize("cls", [Heartbeat, Plan, Outcome, Member])
def test_every_kind_has_a_limit_of_bytes(cls):
    """Also those that name none."""
    with pytest.raises(VoidRecordError, match=f"{cls.__name__} record has more than"):
        loads(cls, b" " * (17 * 1024 * 1024))


def test_a_writer_cuts_what_a_reader_would_refuse():
    """The begin and the end of a message stay, and the number of characters between them."""
    written = loads(Outcome, dumps(replace(FAILED, message="begin" + "x" * 100_000 + "end")))
    assert len(written.message) <= 65_536
    assert written.message.startswith("beginx")
    assert written.message.endswith("xend")
    assert "34472 characters" in written.message
    assert loads(Outcome, dumps(written)) == written
    settlement = Settlement(name="c", digest="d", step=None, verdict="failed", reason="é" * 5000)
    assert len(loads(Settlement, dumps(settlement)).reason) == 4096


@given(text=st.text(max_size=300), most=st.integers(0, 200))
def test_a_cut_text_is_never_longer(text, most):
    """However little space there is."""
    assert len(cut_text(text, most)) <= max(most, 0)
    assert cut_text(text, max(most, len(text))) == text


def test_the_reason_of_a_void_plan_is_in_no_file():
    """Nobody can make a plan void by a field."""
    assert "void" not in json.loads(dumps(replace(PLAN, void="because")))
    assert loads(Plan, with_unknown(PLAN, b"1").replace(b"added_later", b"void")).void is None
