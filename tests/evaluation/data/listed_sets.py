"""Sets whose batches are listed, opened by several ranks."""

import hashlib

import numpy as np

from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.task import EvalSet

BATCHES = 40

SIZES = [3] * (BATCHES - 1) + [2]


class _Listed:
    """A source of batches of numbers, which notes what is read; `contents` may change."""

    sharding = "index"

    def __init__(self, shard, sizes=SIZES, name="list"):
        self.shard, self.listed, self.name = shard, sizes, name
        self.contents = [np.full(size, number) for number, size in enumerate(sizes)]
        self.reads = []

    def sizes(self):
        return self.listed

    def fingerprint_of_list(self):
        return hashlib.sha256(f"{self.name} {self.listed}".encode()).hexdigest()

    def chosen(self, numbers):
        for number in numbers:
            self.reads.append(number)
            yield number, self.contents[number]

    def sample(self):
        return next(self.chosen([0]), None)

    def own(self):
        return self.chosen([number for number in range(len(self.contents)) if self.shard.owns(number)])

    def arrays(self, batch):
        return [batch[1]]

    def parts(self, batch):
        return [("input", batch[1])]

    def finite_rows(self, part):
        del part
        return []

    def examples_in(self, batch):
        return len(batch[1])


def opened(rank=0, ranks=1, cache_bytes=0, sizes=SIZES, name="list", **options):
    shard = Shard(rank, ranks)
    source = _Listed(shard, sizes, name)
    eval_set = EvalSet(lambda: None, **options)
    return source, EvalSetReader("test", eval_set, source, shard=shard, budget=CacheBudget(cache_bytes))


def read(reader):
    return reader.read(lambda: None)


def read_again(source, own):
    """Return what a first evaluation reads after its own batches, which is some of them a second time, in any order."""
    again = source.reads[len(own) :]
    assert source.reads[: len(own)] == own
    assert set(again) <= set(own)
    assert len(again) == len(set(again)) <= 64
    return again


def evaluate(reader):
    return [(number, first) for number, first, _ in reader.own()]
