"""Rules of the house that no tool checks."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
MOST_WORDS = 5
MOST_FIELDS = 15
MANY_FIELDS = {"Settings", "Task", "ExportedNumber", "Manifest"}  # one for each setting, argument, column or key


def pattern_of(node):
    """Return the text of a string literal, with a placeholder for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return pattern_of(node.left) + pattern_of(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def patterns_in(source):
    """Yield the line and the text of each literal that is given as `match=`."""
    for node in ast.walk(ast.parse(source)):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "match":
                yield keyword.value.lineno, pattern_of(keyword.value)


def words_of(pattern):
    """Return the words of a pattern, whatever stands between them."""
    return re.sub(r"\.[*+]\??", " ", pattern).split()


def test_sentences_are_recognised():
    """The rule below finds a sentence in a literal, in an f-string and between wildcards."""
    source = (
        'raises(E, match=f"the file {a} is not there")\nraises(E, match="a b.*c d" + "e f")\nraises(E, match="a.*b")'
    )
    assert [(line, len(words_of(text))) for line, text in patterns_in(source)] == [(1, 6), (2, 5), (3, 2)]


def test_no_pattern_of_an_error_is_a_sentence():
    """Messages may be worded anew without a change of tests, so `match=` holds values and at most five words."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path in sorted(TESTS.rglob("*.py"))
        if "match" in (source := path.read_text())
        for line, text in patterns_in(source)
        if len(words_of(text)) > MOST_WORDS
    ]
    assert not found, "\n".join(found)


def targets_of(node):
    """Return what an assignment assigns to, tuples taken apart."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]


def fields_of(definition):
    """Return the names of a class's annotated attributes, and of what its methods assign to `self`."""
    annotated = [each for each in definition.body if isinstance(each, ast.AnnAssign)]
    fields = {each.target.id for each in annotated if not ast.unparse(each.annotation).startswith("ClassVar")}
    for node in ast.walk(definition):
        for target in targets_of(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                fields.add(target.attr)
    return fields


def test_fields_are_recognised():
    """The rule below counts annotations, and what any method assigns to `self`."""
    head = "class A:\n  Z: ClassVar[int] = 0\n  a: int\n  b: int = 1\n"
    source = head + "  def f(self):\n    self.c, self.d = 1, 2\n    self.e += other.f"
    assert fields_of(ast.parse(source).body[0]) == {"a", "b", "c", "d", "e"}


def test_classes_of_the_product_have_few_fields():
    """A class with more fields holds several things that have names of their own."""
    found = {
        node.name: fields
        for path in (TESTS.parent / "sidecar").rglob("*.py")
        if "class" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and (fields := len(fields_of(node))) > MOST_FIELDS
    }
    assert found.keys() - MANY_FIELDS == set(), found
