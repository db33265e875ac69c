"""List the batches of a loader whose sampler or batch sampler is of any kind."""

import numpy as np
import pytest
from evaluation.backends.torch import models
from evaluation.backends.torch.data_sets import (
    assert_right,
    evaluate,
    loader,
    net,
    refused,
    task,
    truth,
)

pytestmark = pytest.mark.torch


checkpoint = models.checkpoint_of(net)


def test_a_batch_sampler_that_is_a_list(checkpoint):
    """Its batches are evaluated as they are: of unequal sizes, and only the examples that they name."""
    import torch

    batches = [[0, 1, 2], [9], [3, 4, 5, 6, 7, 8], list(range(10, 20))]
    for given in (batches, [torch.tensor(batch) for batch in batches], [np.array(batch) for batch in batches]):
        assert_right(
            task(lambda given=given: loader(batch_size=1, batch_sampler=given)),
            checkpoint,
            truth(checkpoint, chosen=range(20)),
        )


def test_a_batch_sampler_of_torch_around_a_sampler(checkpoint):
    from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler

    def of(sampler, drop_last=False):
        return task(lambda: loader(batch_size=1, batch_sampler=BatchSampler(sampler, 8, drop_last)))

    assert_right(of(RandomSampler(range(33))), checkpoint, truth(checkpoint))
    assert_right(of(SubsetRandomSampler(range(24)), drop_last=True), checkpoint, truth(checkpoint, chosen=range(24)))
    assert "leaves out 1 of 33" in str(refused(of(RandomSampler(range(33)), drop_last=True)))


def test_samplers_that_permute_or_pad_are_replaced_and_named(checkpoint):
    from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler

    samplers = {
        "RandomSampler": lambda: RandomSampler(range(33)),
        "DistributedSampler": lambda: DistributedSampler(range(33), num_replicas=4, rank=2),
        "SubsetRandomSampler": lambda: SubsetRandomSampler([4, 9, 2, 30, 31, 32, 1, 8, 0, 11]),
    }
    for name, sampler in samplers.items():
        chosen = [4, 9, 2, 30, 31, 32, 1, 8, 0, 11] if "Subset" in name else range(33)
        result = assert_right(
            task(lambda sampler=sampler: loader(sampler=sampler())), checkpoint, truth(checkpoint, chosen=chosen)
        )
        assert name in " ".join(result.notes)
    assert "RandomSampler" in evaluate(task(lambda: loader(shuffle=True)), checkpoint).notes[0]
    assert evaluate(task(loader), checkpoint).notes == ()


def test_a_sampler_of_other_indices_than_those_of_the_dataset(checkpoint):
    """Samplers of torch take any object with a length: only its indices are evaluated, as torch does."""
    from torch.utils.data import RandomSampler, SequentialSampler

    for sampler in (SequentialSampler(range(20)), RandomSampler(range(20)), range(20), [*range(20)]):
        given = task(lambda sampler=sampler: loader(sampler=sampler))
        assert_right(given, checkpoint, truth(checkpoint, chosen=range(20)))


def test_an_own_sampler_with_a_fixed_order(checkpoint):
    from torch.utils.data import Sampler, SequentialSampler

    class Backwards(Sampler):
        def __iter__(self):
            return iter(range(32, -1, -1))

    class Even(SequentialSampler):
        def __iter__(self):
            return iter(range(0, 33, 2))

    assert_right(task(lambda: loader(sampler=Backwards())), checkpoint, truth(checkpoint))
    chosen = list(range(0, 33, 2))
    assert_right(task(lambda: loader(sampler=Even(range(33)))), checkpoint, truth(checkpoint, chosen=chosen))


def test_samplers_that_select_other_examples_each_time():
    import itertools

    import torch
    from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

    class Own(DistributedSampler):
        def __iter__(self):
            return iter(range(self.rank, 33, 4))

    class Unseeded:
        def __iter__(self):
            return iter(np.random.permutation(33).tolist())  # noqa: NPY002 - as users do

    class Endless:
        def __iter__(self):
            return itertools.cycle(range(33))

    seeded = torch.Generator().manual_seed(1)
    samplers = {
        "WeightedRandomSampler": WeightedRandomSampler([1.0] * 33, 33),
        "WeightedRandomSampler, seeded": WeightedRandomSampler([1.0] * 33, 33, generator=seeded),
        "RandomSampler": RandomSampler(range(33), replacement=True),
        "RandomSampler, a part": RandomSampler(range(33), num_samples=20),
        "Unseeded": Unseeded(),
        "does not end": Endless(),
        "Own": Own(range(33), num_replicas=4, rank=1),
    }
    for name, sampler in samplers.items():
        assert name.partition(",")[0] in str(refused(task(lambda sampler=sampler: loader(sampler=sampler))))
