"""Compare tensors with the checksums in their index."""

import contextlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats.tf_tensors import Entry, check_tensors
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CheckpointError, ChecksumError, CorruptError


def test_tensors_over_one_another(tmp_path):
    """An index that names the same bytes a million times is refused, not read a million times."""
    (tmp_path / "shard").write_bytes(b"x" * 100)
    entry = Entry(1, (25,), sliced=False, shard=0, offset=0, size=100, crc=0xAA21888E)
    with pytest.raises(CorruptError, match="overlaps"):
        check_tensors(
            tmp_path, ["shard"], [(b"a", entry), (b"b", Entry(4, (50,), False, 0, 50, 50, 0))], WorkBudget(is_full=True)
        )
    (tmp_path / "shard").write_bytes(b"\xff" * 100)
    with pytest.raises(ChecksumError, match="no readable lengths"):
        check_tensors(tmp_path, ["shard"], [(b"s", Entry(7, (), False, 0, 0, 100, 0))], WorkBudget(is_full=True))


@settings(deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=60),
    st.lists(
        st.tuples(st.sampled_from([1, 7, 21]), st.integers(0, 70), st.integers(0, 70), st.lists(st.integers(0, 70)))
    ),
)
def test_arbitrary_tensors_have_an_answer(tmp_path, data, tensors):
    """Answer for any bytes in a shard and any index."""
    (tmp_path / "shard").write_bytes(data)
    entries = [
        (b"%d" % number, Entry(dtype, tuple(shape), sliced=False, shard=0, offset=offset, size=size, crc=0))
        for number, (dtype, offset, size, shape) in enumerate(tensors)
    ]
    with contextlib.suppress(CheckpointError):
        check_tensors(tmp_path, ["shard"], entries, WorkBudget(is_full=True))


def test_speed(root, record_property):
    """Tensors are read at more than 100 MB/s, where Python alone would need minutes for a GB."""
    size = 64 << 20
    data = root / "data"
    data.write_bytes(bytes(size))
    started = time.monotonic()
    with pytest.raises(ChecksumError):
        check_tensors(root, ["data"], [(b"t", Entry(4, (size,), False, 0, 0, size, 0))], WorkBudget(is_full=True))
    rate = size / 1e6 / (time.monotonic() - started)
    record_property("CRC-32C, MB/s", round(rate))
    print(f"CRC-32C of tensors: {rate:.0f} MB/s")
    assert rate > 100
