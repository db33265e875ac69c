"""Move, compare and pass nested structures of tensors."""

import pytest
from evaluation.backends.torch.data_sets import (
    assert_right,
    loader,
    net,
    structures,
    task,
    truth,
)

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoint(tmp_path):
    import torch

    torch.manual_seed(4)
    torch.save(net().state_dict(), tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


@pytest.mark.parametrize("form", ["named tuple", "data class", "dict", "nested"])
def test_batches_of_any_structure(checkpoint, form):
    collate, step = structures()[form]
    assert_right(task(lambda: loader(collate_fn=collate), step=step), checkpoint, truth(checkpoint))
