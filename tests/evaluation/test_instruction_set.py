"""Name the instruction sets of a processor."""

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("model: 1\nflags\t\t: fpu sse avx avx2 fma avx512f amx_tile\n", "amx_tile avx avx2 avx512f fma"),
        ("Features\t: fp asimd\n", ""),
        ("", ""),
    ],
)
def test_instruction_set(digits, tmp_path, cpuinfo, flags):
    """Those CPU features by which kernels are chosen; a machine that does not tell has none."""
    import platform

    from sidecar.evaluation.instruction_set import instruction_set

    assert digits.HELD_OUT
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert instruction_set(path).split() == [platform.machine(), *flags.split()]
    assert instruction_set(tmp_path / "nothing") == platform.machine()
