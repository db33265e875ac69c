"""Move, compare and pass nested structures of tensors."""

import pytest
from evaluation.backends.torch import models
from evaluation.backends.torch.data_sets import (
    assert_right,
    loader,
    net,
    structures,
    task,
    truth,
)

pytestmark = pytest.mark.torch


checkpoint = models.checkpoint_of(net)


@pytest.mark.parametrize("form", ["named tuple", "data class", "dict", "nested"])
def test_batches_of_any_structure(checkpoint, form):
    collate, step = structures()[form]
    assert_right(task(lambda: loader(collate_fn=collate), step=step), checkpoint, truth(checkpoint))
