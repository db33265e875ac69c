"""The code of Lambda layers in files is compared as data, and never run."""

import base64
import importlib
import marshal

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")


def stored(function):
    return base64.b64encode(marshal.dumps(function.__code__)).decode()


def compiled(source, file="a.py", lines=0):
    """A function of another file and line."""
    return eval(compile("\n" * lines + source, file, "eval"))


SOURCES = (
    "lambda x: x * 2.0",
    "lambda x: x * 2",
    "lambda x: x * 70000000000",
    "lambda x: x - 70000000000",
    "lambda x: [y for y in x if y in {1, 2}]",
    "lambda x, *rest, scale=3: (lambda y: y / scale)(x)",
    "lambda x: tf.nn.relu(x)",
    "lambda x: tf.nn.gelu(x)",
    "lambda x: (x, 'text', b'bytes', 1j, None, ..., True, 1.5e300, 'ä')",
)


def test_equal_functions_of_other_files():
    """File, line and names of variables say nothing; all else does."""
    from sidecar.evaluation.backends.tensorflow.stored_code import read_code

    codes = [read_code(stored(compiled(source))) for source in SOURCES]
    again = [read_code(stored(compiled(source, "b.py", 12))) for source in SOURCES]
    assert codes == again
    assert len({repr(code) for code in codes}) == len(SOURCES)
    assert read_code(stored(compiled("lambda y: y * 2.0"))) == codes[0]


@pytest.mark.parametrize("text", ["", "AAAA", "no base64", base64.b64encode(marshal.dumps((1, 2))).decode()])
def test_other_data_is_no_code(text):
    """Damaged or foreign bytes raise one error, at any place and depth."""
    from sidecar.evaluation.backends.tensorflow.stored_code import read_code

    with pytest.raises(ValueError, match=r".+"):
        read_code(text)
    whole = base64.b64decode(stored(compiled(SOURCES[4])))
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r".+"):
            read_code(base64.b64encode(whole[:end]).decode())
    with pytest.raises(ValueError, match="deep"):
        read_code(base64.b64encode(b")\x01" * 5000).decode())


@pytest.mark.tensorflow
@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["m.keras", "m.h5"])
def test_a_lambda_with_other_code_is_noted(library, name, tmp_path, digits):
    """The same code of another file is not."""
    from sidecar.evaluation.backends.tensorflow.restore import restore

    del digits
    of = importlib.import_module(library)

    def network(function):
        layers = of.layers.Dense(3, name="out"), of.layers.Lambda(function, output_shape=(3,), name="last")
        return of.Sequential([of.Input((2,)), *layers])

    path = str(tmp_path / name)
    network(compiled("lambda x: x * 2.0")).save(path)
    assert restore(network(compiled("lambda x: x * 2.0", "b.py", 7)), path, None).notes == ()
    (note,) = restore(network(compiled("lambda x: x * 3.0")), path, None).notes
    assert "layer 'last' runs other code" in note
    network(compiled("lambda x, scale=2.0: x * scale")).save(path)
    (note,) = restore(network(compiled("lambda x, scale=3.0: x * scale")), path, None).notes
    assert "[2.0] in the file" in note
