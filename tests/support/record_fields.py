"""The fields of records as files have them: those of an inlined part stand where the part is."""

import dataclasses
import typing

from sidecar.protocol.records import INLINED, UNSAVED


def field_types(record):
    """Return the types of a record's fields in its file, by name."""
    types, hints = {}, typing.get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        part, *marks = typing.get_args(hints[field.name]) or (None,)
        if UNSAVED not in marks:
            types |= field_types(part) if INLINED in marks else {field.name: hints[field.name]}
    return types


def field_values(record):
    """Return the values of a record's fields in its file, by name."""
    values = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value) and field.name not in field_types(type(record)):
            values |= field_values(value)
        elif field.name in field_types(type(record)):
            values[field.name] = value
    return values
