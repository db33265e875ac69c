"""Data as users of PyTorch have them: every way gives torch's own numbers for 1 to 4 ranks, or is refused."""

import math
import re
from queue import SimpleQueue

import numpy as np
import pytest
from evaluation.backends.torch import models
from evaluation.backends.torch.data_sets import (
    BATCH,
    DatasetOf,
    Streamed,
    assert_right,
    batches_of,
    children,
    counted_reads,
    dataset,
    evaluate,
    loader,
    net,
    refused,
    stacked,
    structures,
    task,
    tensors,
    truth,
)
from tests_torch import result_of_ranks, torch_evaluator

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.task import EvalSet
from sidecar.protocol.states import WorkerPhase

pytestmark = pytest.mark.torch

REMAINDERS = [1, 7, 8, 9, 31, 32, 33, 40, 47]  # examples: of 1 to 6 batches, so each rank is sometimes without one


checkpoint = models.checkpoint_of(net)


@pytest.mark.parametrize("examples", REMAINDERS)
def test_a_dataset_with_every_remainder(checkpoint, examples):
    assert_right(task(lambda: dataset(examples)), checkpoint, truth(checkpoint, examples))


@pytest.mark.parametrize("examples", REMAINDERS)
def test_a_loader_with_every_remainder(checkpoint, examples):
    assert_right(task(lambda: loader(examples), batch_size=None), checkpoint, truth(checkpoint, examples))


@pytest.mark.parametrize("examples", REMAINDERS)
def test_an_iterable_dataset_with_every_remainder(checkpoint, examples):
    assert_right(task(lambda: Streamed(examples)), checkpoint, truth(checkpoint, examples))


def in_one_memory(kind):
    """Examples or batches of which each is written over the one before, as readers do that allocate nothing."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    x, y = tensors(33)
    memory = torch.zeros(BATCH, x.shape[1])

    def examples():
        for one, label in zip(x, y, strict=True):
            memory[0] = one
            yield memory[0], label

    def batches():
        for start in range(0, 33, BATCH):
            rows = x[start : start + BATCH]
            memory[: len(rows)] = rows
            yield memory[: len(rows)], y[start : start + BATCH]

    def collate(listed):
        rows, labels = stacked(listed)
        memory[: len(rows)] = rows
        return memory[: len(rows)], labels

    class Stream(IterableDataset):
        def __iter__(self):
            return examples()

    sources = {
        "examples": examples,
        "batches": batches,
        "stream": Stream,
        "loader": lambda: loader(collate_fn=collate),
        "loader of a stream": lambda: DataLoader(Stream(), BATCH),
        "loader of batches": lambda: DataLoader(
            type("Batches", (IterableDataset,), {"__iter__": lambda _: batches()})(), None
        ),
    }
    return task(sources[kind], **({"batch_size": None} if "loader" in kind or kind == "batches" else {}))


@pytest.mark.parametrize("kind", ["examples", "batches", "stream", "loader", "loader of a stream", "loader of batches"])
def test_memory_that_is_used_again(checkpoint, kind):
    found = assert_right(in_one_memory(kind), checkpoint, truth(checkpoint), (1, 2, 3))
    assert not any("depend" in note for note in found.notes)


@pytest.mark.parametrize("made", ["tensor", "array", "loader"])
def test_examples_that_are_written_over_the_one_before_are_refused(made):
    """A loader of torch would make a batch of the last example only."""
    import torch

    x, y = tensors(33)
    memory = torch.zeros(x.shape[1])

    class Reused:
        def __len__(self):
            return 33

        def __getitem__(self, index):
            memory.copy_(x[index])
            return {"x": memory.numpy() if made == "array" else memory, "labels": y[index]}

    source = (lambda: torch.utils.data.DataLoader(Reused(), BATCH)) if made == "loader" else Reused
    given = task(source, step=lambda model, batch: (batch["labels"], model(batch["x"])))
    assert "x.clone()" in str(refused(given))


def test_a_map_style_dataset_without_a_base_class(checkpoint):
    class Plain:
        def __len__(self):
            return 33

        def __getitem__(self, index):
            x, y = tensors(33)
            return x[index].numpy(), int(y[index])

    assert_right(task(Plain), checkpoint, truth(checkpoint))


def test_the_collate_function_of_a_loader_is_used(checkpoint):
    """It may change values, and return a list."""
    import torch

    def collate(examples):
        return [torch.stack([x for x, _ in examples]) * 1.0, torch.stack([y for _, y in examples])]

    assert_right(task(lambda: loader(collate_fn=collate)), checkpoint, truth(checkpoint))


def test_a_loader_without_batches_of_its_own(checkpoint):
    """`batch_size=None`: each element of the dataset is a batch."""
    from torch.utils.data import DataLoader

    class Batches:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return tuple(part[index * 8 : index * 8 + 8] for part in tensors(33))

    assert_right(task(lambda: DataLoader(Batches(), batch_size=None)), checkpoint, truth(checkpoint))


@pytest.mark.parametrize("shape", ["single", "ragged"])
def test_elements_that_are_no_batches(shape):
    """Their number of examples cannot be known."""
    import torch
    from torch.utils.data import DataLoader

    elements = {"single": [(torch.tensor(1.0), 2)], "ragged": [([torch.ones(3, 5), torch.ones(3, 6)], torch.ones(2))]}
    error = refused(task(lambda: DataLoader(elements[shape], batch_size=None)))
    assert {"single": "single examples", "ragged": "3 and 2 rows"}[shape] in str(error)


@pytest.mark.seconds
def test_worker_processes_of_a_loader_end_with_each_pass(checkpoint):
    """Also when only the first batch is read, and when a batch fails."""
    before = children()
    given = task(lambda: loader(num_workers=2, pin_memory=True, prefetch_factor=3))
    assert_right(given, checkpoint, truth(checkpoint), ranks=(1, 2))
    assert children() == before

    calls = SimpleQueue()  # a list would be set back before the checkpoint is restored

    def failing(model, batch):
        calls.put(len(children() - before))
        if calls.qsize() >= 4:  # after two trials and the first batch; parts of it may fail
            raise ValueError
        return batch[1], model(batch[0])

    with pytest.raises(ValueError):  # noqa: PT011 - of the task
        result_of_ranks(task(lambda: loader(num_workers=2), step=failing), checkpoint, 1, cache_bytes=0)
    assert [calls.get() for _ in range(calls.qsize())][:4] == [0, 0, 2, 2]
    assert children() == before


@pytest.mark.seconds
def test_worker_processes_are_started_as_the_loader_starts_them(checkpoint):
    """A dataset may be usable only in processes that `worker_init_fn` prepared."""

    class Opened:
        file = None

        def __len__(self):
            return 33

        def __getitem__(self, index):
            return tuple(part[index] for part in self.file)

    def open_file(_worker):
        from torch.utils.data import get_worker_info

        get_worker_info().dataset.file = tensors(33)

    from torch.utils.data import DataLoader

    def source():
        return DataLoader(Opened(), batch_size=8, num_workers=2, worker_init_fn=open_file, persistent_workers=True)

    assert_right(task(source), checkpoint, truth(checkpoint), ranks=(1,))


def test_drop_last_is_refused_only_if_it_drops(checkpoint):
    from torch.utils.data import DataLoader

    assert_right(task(lambda: loader(32, drop_last=True)), checkpoint, truth(checkpoint, 32))
    assert "leaves out 1 of 33" in str(refused(task(lambda: loader(33, drop_last=True))))
    streamed = [task(lambda n=n: DataLoader(Streamed(n), batch_size=8, drop_last=True)) for n in (32, 33)]
    assert_right(streamed[0], checkpoint, truth(checkpoint, 32))
    assert "leaves out 1 examples" in str(refused(streamed[1], checkpoint))


@pytest.mark.seconds
def test_an_iterable_dataset_in_a_loader_with_processes(checkpoint):
    """Each process would read all examples, as torch's documentation warns: one process reads, and a note says so."""
    from torch.utils.data import DataLoader

    result = assert_right(
        task(lambda: DataLoader(Streamed(), batch_size=8, num_workers=2)), checkpoint, truth(checkpoint)
    )
    assert "one process" in result.notes[0]


def test_an_iterable_dataset_of_batches(checkpoint):
    """With `batch_size=None`, in the task or in the loader."""
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):
        def __iter__(self):
            return iter(loader())

    assert_right(task(Batches, batch_size=None), checkpoint, truth(checkpoint))
    assert_right(task(lambda: DataLoader(Batches(), batch_size=None)), checkpoint, truth(checkpoint))


def test_a_source_that_takes_a_shard(checkpoint):
    """A map-style or iterable dataset of a part; the last ranks may have nothing."""
    from torch.utils.data import IterableDataset, Subset

    def part(shard):
        return Subset(dataset(), range(33)[shard.rank * 16 : (shard.rank + 1) * 16])

    class Part(IterableDataset):
        def __init__(self, shard):
            self.shard = shard

        def __iter__(self):
            return iter(part(self.shard))

    truths = {ranks: truth(checkpoint, chosen=range(min(33, 16 * ranks))) for ranks in (1, 2, 3, 4)}
    for source in (part, Part):
        for ranks, expected in truths.items():
            assert_right(task(source), checkpoint, expected, ranks=(ranks,))


@pytest.mark.parametrize("is_iterable", [False, True])
def test_each_rank_prepares_its_own_examples_only(checkpoint, is_iterable):
    """`prepare` gets the parts of an example; an example before it may be of any kind that can be compared."""
    from torch.utils.data import Dataset, IterableDataset

    prepared = []
    x, y = tensors(33)

    class Paths(Dataset):
        def __len__(self):
            return 33

        def __getitem__(self, index):
            return f"{index}.png", [index] * (index % 3)

    class Listed(IterableDataset):
        def __iter__(self):
            return (Paths()[index] for index in range(33))

    def decode(path, ragged):
        index = int(path.removesuffix(".png"))
        assert len(ragged) == index % 3
        prepared.append(index)
        return x[index], y[index]

    given = task(EvalSet(Listed if is_iterable else Paths, prepare=decode))
    assert_right(given, checkpoint, truth(checkpoint))
    evaluator = torch_evaluator(given, rank=1, ranks=3, cache_bytes=0)
    evaluator.read(lambda: None)
    evaluator.restore(str(checkpoint))()
    own = [*range(8, 16), 32]
    prepared.clear()
    evaluator.evaluate(lambda: None)
    anew = [] if is_iterable else [13, 14, 15]  # those of batch 1 that the model gets alone
    assert sorted(prepared) == sorted(own + anew)
    prepared.clear()
    evaluator.evaluate(lambda: None)
    assert sorted(prepared) == own


def test_a_prepare_that_draws_random_numbers():
    """Batches after it are never compared between ranks."""
    import torch

    error = refused(task(EvalSet(dataset, prepare=lambda x, y: (x + torch.rand(4), y))))
    assert error.kind == "stream_differs"


def test_a_loader_and_prepare():
    assert "prepare" in str(refused(task(EvalSet(loader, prepare=lambda x, y: (x, y)))))


def test_a_dict_without_labels_needs_a_step():
    collate, _ = structures()["dict"]
    assert "without 'labels'" in str(refused(task(lambda: loader(collate_fn=collate))))


def test_a_collate_function_that_draws(checkpoint, evaluated):
    """Such as that of masked language models. The message has the line that seeds it."""
    import torch
    from torch.utils.data import DataLoader, default_collate

    def collate(rows):
        x, y = default_collate(rows)
        return x * torch.bernoulli(torch.full(x.shape, 0.5)), y

    def loader(function):
        return lambda: DataLoader(DatasetOf(list(zip(*tensors(33), strict=True))), 8, collate_fn=function)

    told = str(evaluated(task(loader(collate)), checkpoint))
    line = re.search(r"collate_fn=(lambda rows: .*\)\[1\])", told)[1]
    seeded = eval(line, {"torch": torch, "collate": collate})
    assert evaluated(task(loader(seeded)), checkpoint).result.examples == {"test": 33}


class TestACollateFunctionLeavesOut:
    """A usual way to skip broken files: the dataset returns None, and the collate function leaves it out."""

    @staticmethod
    def _source(form="tensors", **options):
        from torch.utils.data import DataLoader

        x, y = tensors(33)
        examples = [None if at % 13 == 5 else (x[at], y[at]) for at in range(33)]

        def collate(items):
            kept = [item for item in items if item is not None]
            if form == "dict":
                return dict(zip("xy", stacked(kept), strict=True))
            return stacked(kept) if form == "tensors" else tuple(zip(*kept, strict=True))

        return lambda: DataLoader(examples, batch_size=8, collate_fn=collate, **options)

    @staticmethod
    def _step(form):
        import torch

        return {
            "tensors": None,
            "dict": lambda model, batch: (batch["y"], model(batch["x"])),
            "lists": lambda model, batch: (torch.stack(batch[1]), model(torch.stack(batch[0]))),
        }[form]

    @pytest.mark.parametrize("form", ["tensors", "dict", "lists"])
    def test_the_rest_is_evaluated(self, checkpoint, form):
        """The number is that of the examples that are left, and a note has both counts."""
        left = [at for at in range(33) if at % 13 != 5]
        given = task(self._source(form), step=self._step(form))
        result = assert_right(given, checkpoint, truth(checkpoint, chosen=left), ranks=(1, 2, 3))
        (note,) = result.notes
        assert "30 rows for 33" in note
        assert "collate_fn" in note

    @pytest.mark.parametrize("check", ["sample", "all"])
    def test_the_result_counts_what_is_left(self, checkpoint, evaluated, check):
        """`examples` are those that were evaluated, also if the workers compare a list of batches."""
        source = EvalSet(self._source(), check=check)
        done = evaluated(task(source), checkpoint)
        assert done.result.examples == {"test": 30}
        assert "30 examples were evaluated" in str(evaluated(task(EvalSet(self._source(), examples=33)), checkpoint))

    def test_without_a_collate_function(self):
        """A dataset that returns None for an example is told so."""
        x, y = tensors(33)
        examples = DatasetOf([None if at == 5 else (x[at], y[at]) for at in range(33)])
        assert "None for an example" in str(refused(task(lambda: examples)))

    def test_a_batch_without_examples(self, checkpoint, evaluated):
        """Its collate function returns None if nothing is left of a batch: the message has the batch to return."""
        import torch
        from torch.utils.data import DataLoader, default_collate

        x, y = tensors(33)

        def loader(nothing):
            kept = [(x[at], y[at]) if at < 24 else None for at in range(33)]

            def collate(items):
                left = [item for item in items if item is not None]
                return default_collate(left) if left else nothing

            return lambda: DataLoader(DatasetOf(kept), 8, collate_fn=collate)

        told = str(evaluated(task(loader(None)), checkpoint))
        assert "collate_fn returns None for a batch" in told
        assert "(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))" in told
        empty = torch.zeros(0, x.shape[1]), torch.zeros(0, dtype=torch.long)
        assert evaluated(task(loader(empty)), checkpoint).result.examples == {"test": 24}

    def test_an_iterable_dataset(self, checkpoint, evaluated):
        """A stream is counted by the rows of its batches as well."""
        from torch.utils.data import DataLoader, IterableDataset

        examples = self._source()().dataset

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(examples)

        collate = self._source()().collate_fn
        done = evaluated(task(lambda: DataLoader(Stream(), batch_size=8, collate_fn=collate)), checkpoint)
        assert done.result.examples == {"test": 30}


class TestTheThirdPart:
    """Datasets that return (x, y, index), (x1, x2, y) or (x, y, weight), without a step."""

    @staticmethod
    def _source(third, examples=33):
        from torch.utils.data import TensorDataset

        return lambda: TensorDataset(*tensors(examples), third)

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    @pytest.mark.parametrize("form", ["index", "number", "permuted", "in each batch", "prepared", "iterable", "all"])
    def test_numbers_of_examples_are_refused(self, checkpoint, form, ranks):
        """Every rank refuses them, and the message has the line to write, which is right."""
        import torch
        from torch.utils.data import DataLoader, IterableDataset

        x, y = tensors(33)
        rows = [(x[at], y[at], at) for at in range(33)]

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(rows)

        source = {
            "index": lambda: DataLoader(rows, batch_size=BATCH),
            "number": self._source(torch.arange(33)[:, None] + 1),
            "permuted": self._source(torch.randperm(33, generator=torch.Generator().manual_seed(1))),
            "in each batch": self._source(torch.arange(33) % BATCH),
            "prepared": EvalSet(lambda: DatasetOf(range(33)), prepare=lambda at: rows[at]),
            "iterable": Stream,
            "all": EvalSet(lambda: DataLoader(rows, batch_size=BATCH), check="all"),
        }[form]
        with pytest.raises(EvaluationError, match="'test'") as caught:
            result_of_ranks(task(source), checkpoint, ranks)
        line = "step=lambda model, batch: (batch[1], model(batch[0]))"
        assert line in str(caught.value)
        step = eval(line.removeprefix("step="))
        assert_right(task(source, step=step), checkpoint, truth(checkpoint), ranks=(ranks,))

    def test_other_integers_are_weights(self, checkpoint):
        """Masks and counts count as weights, and a note says so, for all ranks."""
        import torch

        mask = torch.arange(33) % 3 % 2
        result = assert_right(
            task(self._source(mask)), checkpoint, truth(checkpoint, chosen=mask.bool()), ranks=(1, 2, 3)
        )
        assert any("third part of each batch" in note for note in result.notes)
        step = lambda model, batch: (batch[1], model(batch[0]), batch[2])  # noqa: E731
        assert evaluate(task(self._source(mask), step=step), checkpoint).notes == ()

    def test_two_inputs_and_a_label(self, checkpoint):
        """The error about shapes says what was taken for the weight, with the line to write."""
        import torch
        from torch import nn
        from torch.utils.data import TensorDataset

        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.one = nn.Linear(4, 3)

            def forward(self, first, second):
                return self.one(first) + self.one(second)

        x, y = tensors(33)
        line = "step=lambda model, batch: (batch[2], model(batch[0], batch[1]))"
        for model in (net, Pair):
            torch.save(model().state_dict(), checkpoint)
            given = task(lambda: TensorDataset(x, x, y), build_model=model, loss=None)
            with pytest.raises((EvaluationError, TaskError), match="third part") as caught:
                result_of_ranks(given, checkpoint, 1)
            assert line in str(caught.value)
        step = eval(line.removeprefix("step="))
        assert evaluate(task(lambda: TensorDataset(x, x, y), build_model=Pair, step=step), checkpoint).notes == ()


@pytest.mark.parametrize("source", ["numpy", "dataset"])
def test_float64_data_for_a_float32_model(source):
    """Numpy's default type; torch's own message does not name the remedy."""
    from torch.utils.data import TensorDataset

    x, y = tensors(33)
    given = {"numpy": lambda: (x.double().numpy(), y.numpy()), "dataset": lambda: TensorDataset(x.double(), y)}
    text = str(refused(task(given[source])))
    assert "float64" in text
    assert "x.float()" in text


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.seconds)])
def test_random_transforms_are_refused(processes, checkpoint):
    """Random crops of training, left in the transforms of the test set."""
    import torch
    from torch.utils.data import DataLoader

    class Augmented:
        def __len__(self):
            return 33

        def __getitem__(self, index):
            x, y = dataset()[index]
            return x + torch.rand(4), y

    given = task(lambda: DataLoader(Augmented(), batch_size=8, num_workers=processes))
    assert refused(given, checkpoint).kind == "stream_differs"


def test_random_transforms_of_numpy_are_refused(checkpoint):
    class Augmented:
        def __len__(self):
            return 33

        def __getitem__(self, index):
            x, y = dataset()[index]
            return x.numpy() + np.random.random(4).astype(np.float32), y  # noqa: NPY002 - as users do

    assert refused(task(Augmented), checkpoint).kind == "stream_differs"


def test_transforms_that_are_random_for_few_examples_are_refused(checkpoint, monkeypatch):
    """The sample of eight batches lacks them, so workers read some of their batches again."""
    from sidecar.evaluation.data import reader

    reads = {}

    class Rare:
        def __len__(self):
            return 480

        def __getitem__(self, index):
            reads[index] = reads.get(index, 0) + 1
            x, y = dataset(480)[index]
            return (x + reads[index] if index % 100 == 99 else x), y

    monkeypatch.setattr(reader, "_SHARE_OF_FIRST", 1e9)
    error = refused(task(Rare), checkpoint)
    assert error.kind == "stream_differs"
    assert any(count > 2 for count in reads.values())


def test_objects_that_cannot_be_compared_are_refused():
    class Graph:
        pass

    given = task(lambda: loader(collate_fn=lambda examples: (Graph(), stacked(examples)[1])))
    assert "Graph" in str(refused(given))


@pytest.mark.parametrize("base", ["torch", "none"])
def test_a_dataset_without_a_length(checkpoint, base):
    """Python reads an object in turn whose index ends with `IndexError`, and so is it read here."""
    from torch.utils.data import Dataset

    class Old(Dataset if base == "torch" else object):
        def __getitem__(self, index):
            return dataset()[index]

    assert_right(task(Old), checkpoint, truth(checkpoint))
    given = EvalSet(Old, prepare=lambda x, y: (x * 1, y))
    assert_right(task(given), checkpoint, truth(checkpoint), ranks=(2,))


@pytest.mark.parametrize(
    "reason", ["no length", "no length in a loader", "keys", "no collate", "own loader", "empty", "datasets"]
)
def test_what_cannot_be_read_is_refused_with_the_reason(reason):
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    class NoLength(Dataset):
        def __getitem__(self, index):
            return dataset()[index % 33]

    class Keyed(Dataset):
        def __getitem__(self, index):
            return {0: dataset()[0]}[index]

    class Ragged(Dataset):
        def __len__(self):
            return 33

        def __getitem__(self, index):
            return torch.zeros(index), 1

    class OwnLoader(DataLoader):
        def __iter__(self):
            return iter([])

    sources = {
        "no length": (NoLength, "__len__"),
        "no length in a loader": (lambda: DataLoader(NoLength(), batch_size=8), "__len__"),
        "keys": (Keyed, "KeyError"),
        "no collate": (Ragged, "collate_fn"),
        "own loader": (lambda: OwnLoader(dataset(), batch_size=8), "OwnLoader"),
        "empty": (lambda: Subset(dataset(), []), "is empty"),
        "datasets": (lambda: {"train": dataset(), "test": dataset()}, "'train', 'test'"),
    }
    source, expected = sources[reason]
    assert expected in str(refused(task(source)))


def test_a_dataset_needs_a_batch_size():
    assert "batch_size" in str(refused(task(dataset, batch_size=None)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("examples", [33, 47])
def test_bits_with_one_and_two_threads(threads, examples, tmp_path):
    """A short last batch of convolutions is computed differently with 2 threads, but equally on each rank."""
    import torch
    from torch import nn

    def conv():
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 3)
        )

    torch.manual_seed(3)
    torch.save(conv().state_dict(), tmp_path / "conv.pt")
    x = torch.randn(examples, 64, generator=torch.Generator().manual_seed(1))
    source = lambda: torch.utils.data.TensorDataset(x, torch.arange(examples) % 3)  # noqa: E731
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        evaluate(task(source, build_model=conv), tmp_path / "conv.pt")
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("check", ["sample", "all"])
def test_a_rank_reads_its_own_examples_and_a_sample(checkpoint, check):
    """Or, with `check="all"`, all examples once. The numbers are the same."""
    from sidecar.evaluation.data.listed import sampled

    source, reads = counted_reads()
    given = task(EvalSet(source, check=check))
    assert_right(given, checkpoint, truth(checkpoint, 160))
    reads.clear()
    evaluator = torch_evaluator(given, rank=1, ranks=4, cache_bytes=0)
    (stream,) = evaluator.read(lambda: None)
    assert (stream.batches, stream.examples, stream.own_batches) == (20, 160, 5)
    assert stream.sharding == {"sample": "index", "all": "batches"}[check]
    evaluator.restore(str(checkpoint))()
    evaluator.evaluate(lambda: None)
    sample = set(sampled(evaluator._sources["test"].fingerprint_of_list(), 20))
    assert batches_of(reads) == ({1, 5, 9, 13, 17} | sample if check == "sample" else set(range(20)))


def test_a_dataset_and_a_loader_of_the_same_batches_have_one_fingerprint():
    from torch.utils.data import SubsetRandomSampler

    def fingerprint(source, **options):
        (stream,) = torch_evaluator(task(EvalSet(source, **options))).read(lambda: None)
        return stream.fingerprint

    assert fingerprint(dataset) == fingerprint(loader)
    assert fingerprint(dataset) == fingerprint(lambda: loader(sampler=[*range(33)]))
    assert fingerprint(dataset, check="all") == fingerprint(loader, check="all")
    subset = SubsetRandomSampler([*range(16), 17, 16, *range(18, 33)])
    assert fingerprint(lambda: loader(sampler=subset)) != fingerprint(dataset)


def test_examples_with_keys_that_are_no_numbers(checkpoint):
    """A dataset may be a mapping, whose sampler yields names."""
    from torch.utils.data import DataLoader

    names = [f"example-{index}" for index in range(33)]
    examples = dict(zip(names, dataset(), strict=True))
    source = lambda: DataLoader(examples, batch_size=8, sampler=names)  # noqa: E731
    assert_right(task(source), checkpoint, truth(checkpoint))


def test_areas_under_curves_know_the_number_of_examples(checkpoint):
    from sidecar.metrics import AUC

    step = lambda m, b: ((b[1] > 0).long(), m(b[0])[:, 0])  # noqa: E731
    evaluate(task(dataset, step=step, loss=None, metrics=lambda: [AUC()]), checkpoint)


def test_data_that_change_between_evaluations(checkpoint):
    """Own batches that are not in memory are read and compared each time."""
    import torch

    x, y = tensors(33)
    evaluator = torch_evaluator(task(lambda: torch.utils.data.TensorDataset(x, y)), cache_bytes=0)
    for changed in (False, False, True):
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        if changed:
            x[12] += 1
            with pytest.raises(EvaluationError) as caught:
                evaluator.evaluate(lambda: None)
            assert caught.value.kind == "stream_differs"
        else:
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("kind", ["map", "stream", "own", "batches of its own"])
def test_the_result_says_how_data_was_divided(checkpoint, evaluated, kind):
    from torch.utils.data import DataLoader

    sources = {
        "map": (loader, "batches", 5),
        "stream": (Streamed, "batches", 5),
        "own": (lambda shard: dataset(), "own", None),  # noqa: ARG005
        "batches of its own": (lambda: DataLoader([*loader()], batch_size=None), "batches", 5),
    }
    source, sharding, batches = sources[kind]
    data = evaluated(task(source), checkpoint).result.data["test"]
    assert (data.sharding, data.batches) == (sharding, batches)
    assert (data.fingerprint is None) == (kind == "own")
    assert (data.sampled is None) == (kind != "map")


@pytest.mark.parametrize("form", ["images", "boxes", "tensor"])
def test_examples_that_are_not_finite_are_counted_in_ragged_lists(checkpoint, evaluated, form):
    """The last batch has three images of three channels: these are not taken for examples."""
    import torch
    from torch.utils.data import DataLoader

    class Images:
        def __len__(self):
            return 11

        def __getitem__(self, index):
            image, boxes, weight = torch.zeros(3, 4 + index, 4), torch.zeros(3, 4), torch.tensor(1.0)
            if index == 9:
                {"images": image[0, 0], "boxes": boxes[2], "tensor": weight}[form].fill_(math.nan)
            return image, {"boxes": boxes, "label": index % 3, "weight": weight}

    def step(model, batch):
        images, targets = batch
        labels = torch.tensor([target["label"] for target in targets])
        return labels, model(torch.zeros(len(images), 4))

    source = lambda: DataLoader(Images(), batch_size=8, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))  # noqa: E731
    found = evaluated(task(source, step=step), checkpoint).result.nonfinite["test"]
    (place,) = found
    assert place == ("input" if form == "images" else "label")
    assert (found[place].examples, found[place].first_batch, found[place].first_example) == (1, 1, 9)


def test_the_function_of_a_set_of_arrays_is_called_once(checkpoint):
    """Its arrays may be large."""
    calls = []

    def source():
        calls.append(1)
        return tuple(part.numpy() for part in tensors(33))

    evaluator = torch_evaluator(task(source))
    evaluator.read(lambda: None)
    assert calls == [1]
    assert_right(task(source), checkpoint, truth(checkpoint))


@pytest.mark.parametrize("kind", ["loader", "dicts", "16 bits", "examples", "shard"])
def test_generators_of_tensors(checkpoint, kind):
    """Batches of a loader are lists, and numpy has no bfloat16."""

    def halves(examples):
        x, y = stacked(examples)
        return x.bfloat16().float(), y.bfloat16()

    sources = {
        "loader": (lambda: iter(loader()), {"batch_size": None}),
        "dicts": (lambda: iter(loader(collate_fn=structures()["dict"][0])), {"step": structures()["dict"][1]}),
        "16 bits": (lambda: iter(loader(collate_fn=halves)), {"step": lambda m, b: (b[1].long(), m(b[0]))}),
        "examples": (lambda: ([x, y] for x, y in dataset()), {"batch_size": 8}),
        "shard": (lambda shard: iter(loader() if shard.rank == 0 else ()), {}),
    }
    source, options = sources[kind]
    result = evaluate(task(source, **{"batch_size": None} | options), checkpoint)
    assert result.values["loss"].value == pytest.approx(truth(checkpoint)[0], rel=1e-3 if kind == "16 bits" else 1e-6)


def test_a_generator_that_can_be_read_once():
    once = iter(loader())
    assert "read only once" in str(refused(task(lambda: once, batch_size=None)))


def test_a_distributed_sampler_of_the_task():
    """It asks for a process group, which a worker does not have."""
    from torch.utils.data import DistributedSampler

    with pytest.raises(ValueError, match="process group") as caught:
        torch_evaluator(task(lambda: loader(sampler=DistributedSampler(dataset()))))
    message = as_failed(caught.value, phase=WorkerPhase.BUILD, plan=None, rank=None).message
    assert "leave DistributedSampler" in message
