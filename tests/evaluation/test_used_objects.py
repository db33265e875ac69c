"""Find what a function of the user's uses: closures, global variables, defaults, attributes."""

import functools
import json

import pytest

from sidecar.evaluation.used_objects import used_by


class Wanted:
    """Stands for a module with parameters."""


class Holder:
    """An object that is called, and holds another."""

    def __init__(self, held):
        self.held = held

    def __call__(self):
        """Read a global variable, too."""
        return GLOBAL

    def method(self):
        """Return what it holds."""
        return self.held


GLOBAL = Wanted()


def found_in(root):
    return used_by(root, lambda value: isinstance(value, Wanted), lambda value: isinstance(value, bytes))


def closing(held):
    return lambda: held


def through_a_global():
    def inner():
        return GLOBAL

    return inner()


@pytest.mark.parametrize(
    ("root", "names"),
    [
        (through_a_global, ["GLOBAL"]),
        (closing(Wanted()), ["held"]),
        (lambda one=GLOBAL: one, ["one"]),
        (Holder(Wanted()), ["held", "GLOBAL"]),
        (Holder(Wanted()).method, ["held", "GLOBAL"]),
        (functools.partial(print, Wanted()), ["Wanted"]),
        ({"a": [0, Wanted()]}, ["['a'][1]"]),
        (json.dumps, []),
        (lambda batch: batch.GLOBAL, []),
        (None, []),
    ],
    ids=["global", "closure", "default", "object", "method", "partial", "items", "library", "attribute", "nothing"],
)
def test_what_is_used_has_the_name_of_its_variable(root, names):
    """Code of installed packages is not looked into, and an attribute is not a variable."""
    assert sorted(found_in(root)) == sorted(names)


def test_circles_end():
    circle = []
    circle.append(circle)
    assert found_in(circle) == {}
