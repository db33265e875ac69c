"""Read integers out of HDF5 files that lie about themselves, in bounded time."""

import random

from sidecar.checkpoints.formats.keras_iterations import iterations


def test_damaged_hdf5_has_no_step_and_no_error(optimizers, tmp_path):
    """Return a count or none in bounded time, whatever bytes are wrong."""
    contents = [(optimizers / name).read_bytes() for name in ("keras_wrapped.weights.h5", "tf_keras_adam.h5")]
    contents.append((optimizers / "few.weights.h5").read_bytes())
    chance, path, told = random.Random(1), tmp_path / "m.h5", set()
    for number in range(3000):
        content = bytearray(contents[number % len(contents)])
        for _ in range(chance.randint(1, 20)):
            at = chance.randrange(min(len(content), 4096) if chance.random() < 0.7 else len(content))
            content[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        path.write_bytes(content[: chance.randrange(len(content)) if chance.random() < 0.1 else None])
        with path.open("rb", buffering=0) as file:
            told.add(iterations(file, 0, path.stat().st_size))
    assert {8, None} <= told
    assert all(each is None or 0 <= each < 2**63 for each in told)


def test_a_group_within_itself_is_bounded(optimizers, tmp_path):
    """An inner optimizer that is the outer one, which has made no steps."""
    content = (optimizers / "keras_wrapped.weights.h5").read_bytes()
    path = tmp_path / "m.h5"
    for name in (b"inner_optimizer\0", b"vars\0"):
        path.write_bytes(content.replace(name, b"\0" * len(name)))
        with path.open("rb", buffering=0) as file:
            assert iterations(file, 0, len(content)) in (0, 8, None)
