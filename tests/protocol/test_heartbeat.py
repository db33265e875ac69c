"""Read heartbeats of this release and of older ones."""

import json
from dataclasses import replace

import pytest
from heartbeats import make_heartbeat

from sidecar.errors import RecordError
from sidecar.protocol.codec import dumps, from_json, loads
from sidecar.protocol.heartbeat import Heartbeat, WorkerProgress


def test_a_heartbeat_of_an_older_version_tells_no_doing():
    """The field came later; that it is missing is no reason to think that its node is gone."""
    beat = make_heartbeat(doing=(WorkerProgress("w", "join"),))
    assert loads(Heartbeat, dumps(beat)) == beat
    written = json.loads(dumps(beat))
    del written["doing"]
    assert loads(Heartbeat, json.dumps(written).encode()) == replace(beat, doing=None)


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
        b'"version":"1","load":null,"state":"ready",'
        b'"task":"t","plan":3,"outcome":2,"segments":0,"slots":[],"profile":"p","joined_profile":"j","evaluation_code":null,"doing":[],'
        b'"unreadable":["a@1"],"sees":["b@2"],"sees_more":true,"exports":null,"damaged":[],"schema":1}'
    )
    assert loads(Heartbeat, dumps(beat)) == beat


@pytest.mark.parametrize(("field", "value"), [("outcome", None), ("sees", "b@2")])
def test_a_wrong_field_of_a_part_is_named_as_in_the_file(field, value):
    """People look for it there."""
    written = json.loads(dumps(make_heartbeat(sees=("b@2",)))) | {field: value}
    with pytest.raises(RecordError, match=rf"Heartbeat\.{field}\b"):
        from_json(Heartbeat, written)
