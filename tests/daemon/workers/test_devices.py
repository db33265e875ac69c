"""Which GPUs workers see: inside the daemon's own, and not beside another process unless that is wanted."""

import pytest

from sidecar.daemon.workers.devices import (
    NO_GPU,
    Gpu,
    busy,
    check_idle,
    describe,
    for_workers,
    parse_gpus,
    parse_users,
    parse_visible,
    visible,
)
from sidecar.errors import SettingsError

A, B = "GPU-8b5c1d8e-3c7f-5a44-9d3e-0f2b6c1a7e90", "GPU-11f4c2aa-77de-0b1c-8a5f-5c9d3e2b4f61"
GPUS = f"0, {A}\n1, {B}\n"
APPS = f"{B}, 4242\n"


def ask(gpus=GPUS, apps=""):
    """Return what nvidia-smi answers."""
    return lambda arguments: gpus if arguments[1].startswith("--query-gpu") else apps


def test_cpu_workers_see_no_gpu():
    """And nobody is asked."""
    assert visible("cpu", 3, {"CUDA_VISIBLE_DEVICES": "0"}, ask=lambda _: pytest.fail("asked")) == ("-1",) * 3


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (None, ("0", "1")),
        ("1", ("1",)),
        ("1,0", ("1", "0")),
        (f"{B},0", (B, "0")),
        ("0,-1,1", ("0",)),
        (" 0 , 1", ("0", "1")),
    ],
)
def test_one_worker_on_each_gpu_that_the_daemon_sees(own, found):
    """The daemon's CUDA_VISIBLE_DEVICES bounds it; the number of replicas does not matter."""
    environ = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    assert visible("gpu", 1, environ, ask=ask()) == found


@pytest.mark.parametrize(
    ("own", "answer", "why"),
    [
        ("", GPUS, "CUDA_VISIBLE_DEVICES='' hides all"),
        ("-1", GPUS, "'-1' hides all"),
        (None, None, "nvidia-smi finds none"),
    ],
)
def test_no_gpu(own, answer, why):
    """GPUs that are not there or not ours to see: the reason and the remedy."""
    environ = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    with pytest.raises(SettingsError, match="devices = 'cpu'") as caught:
        visible("gpu", 1, environ, ask=ask(answer))
    assert why in str(caught.value)


def test_each_process_of_a_worker_has_its_gpu():
    """None is left over: it would be idle without a word."""
    assert for_workers(("4", "5", "GPU-a", "7"), 2) == ("4,5", "GPU-a,7")
    assert for_workers(("4", "5"), 1) == ("4", "5")
    assert for_workers((NO_GPU, NO_GPU), 3) == (NO_GPU, NO_GPU)
    with pytest.raises(SettingsError, match="3 GPUs"):
        for_workers(("4", "5", "6"), 2)


def test_chosen_gpus():
    """By index or by (the beginning of) a UUID, in the order given."""
    assert visible([1, 0], 1, {}, ask=ask()) == ("1", "0")
    assert visible([A[:12]], 1, {"CUDA_VISIBLE_DEVICES": "0"}, ask=ask()) == (A[:12],)
    assert visible(["0"], 1, {"CUDA_VISIBLE_DEVICES": A}, ask=ask()) == ("0",)
    assert visible(["MIG-1"], 1, {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, ask=ask(None)) == ("MIG-1",)


@pytest.mark.parametrize(
    ("devices", "own", "words"),
    [
        ([1], "0", "GPU '1' is not among those that this daemon sees (0)"),
        ([B], "0", f"GPU '{B}' is not among those that this daemon sees (0)"),
        ([7], None, "GPU '7' is not among those that this daemon sees (0, 1)"),
        ([0], "", "(none)"),
        ([], None, "name each GPU once"),
        ([0, "0"], None, "name each GPU once"),
    ],
)
def test_never_wider(devices, own, words):
    """A GPU outside what the daemon sees is refused by name."""
    environ = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    with pytest.raises(SettingsError) as caught:
        visible(devices, 1, environ, ask=ask())
    assert words in str(caught.value)


def test_busy_gpu_needs_a_word():
    """A GPU on which a stranger computes is refused with its process, unless share_gpu allows it."""
    with pytest.raises(SettingsError, match=r"GPU 1\b.*\b4242\b.*\bshare_gpu\b"):
        check_idle(("0", "1"), share=False, ask=ask(apps=APPS))
    check_idle(("0", "1"), share=True, ask=ask(apps=APPS))
    check_idle(("0",), share=False, ask=ask(apps=APPS))
    check_idle(("1",), share=False, own={4242}, ask=ask(apps=APPS))
    check_idle(("-1",), share=False, ask=lambda _: pytest.fail("asked"))
    check_idle(("1",), share=False, ask=lambda _: None)


def test_busy_by_any_name():
    """The same GPU by index and by UUID."""
    machine = (Gpu(0, A), Gpu(1, B))
    assert busy(["1", B, B[:10], "0"], machine, [(B, 7)]) == [("1", 7), (B, 7), (B[:10], 7)]
    assert busy(["MIG-1"], (), [("MIG-1", 7)]) == [("MIG-1", 7)]


def test_what_nvidia_smi_says_in_words():
    """No driver, no process, withheld pids: recorded answers of nvidia-smi."""
    words = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure, that it is running.\n"
    )
    assert parse_gpus(words) == parse_gpus("") == parse_users(words) == parse_users("\n") == ()
    assert parse_gpus("No devices were found\n") == ()
    assert parse_users("No running processes found\n") == ()
    assert parse_users(f"{A}, [Not Supported]\n{B}, 17\n") == ((A, 0), (B, 17))
    assert parse_gpus(GPUS) == (Gpu(0, A), Gpu(1, B))


def test_names_after_one_that_is_no_device_are_invisible():
    """As CUDA reads its variable."""
    assert parse_visible("0,1,-1,2") == ("0", "1")
    assert parse_visible("none,0") == parse_visible("") == ()


def test_what_gpus_are_called():
    """Those of this node's workers only; a machine without GPUs is not asked."""
    models = ask(f"0, {A}, NVIDIA A100-SXM4-80GB\n1, {B}, NVIDIA H200\n")
    assert describe(("0", B[:12]), ask=models) == "1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA H200"
    assert describe(("1",), ask=models) == "1 x NVIDIA H200"
    assert describe(("0", "1"), ask=lambda _: None) == "2 x GPU"
    assert describe(("-1", "-1"), ask=lambda _: pytest.fail("asked")) == ""
