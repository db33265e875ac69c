"""Every public class of torchmetrics, tried as the worker uses it: which are right, and why others are refused.

`python tests/evaluation/backends/torch/every_torchmetric.py` writes the table of the docs anew.
"""

import ast
import importlib
import inspect
import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

TABLE = Path(__file__).parents[4] / "docs" / "reference" / "torchmetrics.md"
AREAS = (
    *("aggregation", "audio", "classification", "clustering", "detection", "image", "multimodal", "nominal"),
    *("regression", "retrieval", "segmentation", "shape", "text", "video", "wrappers"),
)
BATCHES = (16, 16, 16, 13)  # the last one is short
FEW = (4, 4, 3)  # of images and sounds
CLASSES = 5
LABELS = 4

ARGUMENTS = {
    "task": "multiclass",
    "num_classes": CLASSES,
    "num_labels": LABELS,
    "beta": 0.5,
    "min_recall": 0.5,
    "min_precision": 0.4,
    "min_sensitivity": 0.5,
    "min_specificity": 0.5,
    "num_groups": 2,
    "threshold": 0.5,
    "data_range": 1.0,
    "p": 3.0,
    "things": {0, 1},
    "stuffs": {6, 7},
    "mouth_map": [0, 1, 2],
    "num_outputs": 2,
}
"""Values of arguments without a default."""

SPECIAL = {
    "CosineSimilarity": {"reduction": "mean"},
    "FleissKappa": {"mode": "counts"},
    "MinkowskiDistance": {"p": 3.0},
    "MeanIoU": {"num_classes": 3},
    "DiceScore": {"num_classes": 3},
    "GeneralizedDiceScore": {"num_classes": 3},
    "HausdorffDistance": {"num_classes": 3},
    "SignalDistortionRatio": {"filter_length": 64},
    "StructuralSimilarityIndexMeasure": {"data_range": 1.0},
    "MultiScaleStructuralSimilarityIndexMeasure": {"data_range": 1.0, "betas": (0.5, 0.5)},
    "ROUGEScore": {"rouge_keys": ("rouge1", "rougeL")},  # the others need nltk
}


@dataclass(frozen=True)
class Tried:
    """Hold what became of one class."""

    area: str
    reason: str | None = None  # None: right
    kind: str = "right"  # or in turn, refused, wrong, other packages
    bits: int = 1  # different results of 1 to 4 ranks
    is_near: bool = True  # to torchmetrics in one process


def random():
    return np.random.default_rng(7)


def numbers(*shape, low=None):
    import torch

    values = random().normal(size=shape).astype("float32")
    return torch.from_numpy(values if low is None else np.abs(values) + low)


def whole(high, *shape, seed=3):
    import torch

    return torch.from_numpy(np.random.default_rng(seed).integers(0, high, shape))


def near(values):
    """Numbers that are related to others."""
    import torch

    noise = torch.from_numpy(np.random.default_rng(11).normal(size=tuple(values.shape)).astype("float32"))
    return 0.7 * values + 0.3 * noise


def texts(count, seed):
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "more", "dog", "run", "far", "away", "today"]
    drawn = np.random.default_rng(seed).integers(0, len(words), (count, 9))
    return [" ".join(words[place] for place in row) for row in drawn]


def data(area, name, sizes):  # noqa: C901, PLR0911, PLR0912 - a table
    """Predictions and labels for a class."""
    import torch

    n = sum(sizes)
    if area == "wrappers" or name in {"MetricCollection", "Metric"}:
        if name == "MultitaskWrapper":
            return {"one": numbers(n)}, {"one": near(numbers(n))}
        if name == "MultioutputWrapper":
            return numbers(n, 2), near(numbers(n, 2))
        if name == "ClasswiseWrapper":
            return numbers(n, CLASSES).softmax(1), whole(CLASSES, n)
        if name == "BinaryTargetTransformer":
            return numbers(n).sigmoid(), whole(2, n)
        return numbers(n), near(numbers(n))
    if area == "aggregation":
        return numbers(n), near(numbers(n))
    if name.startswith("Binary"):
        scores, target = numbers(n).sigmoid(), whole(2, n)
        if "Fairness" in name or "Group" in name:
            return scores, {"target": target, "groups": whole(2, n, seed=5)}
        return scores, target
    if name in {"MulticlassExactMatch", "ExactMatch"}:
        return whole(CLASSES, n, 2), (whole(CLASSES, n, 2) + whole(8, n, 2, seed=5) // 7) % CLASSES
    if name.startswith("Multilabel"):
        return numbers(n, LABELS).sigmoid(), whole(2, n, LABELS)
    if area == "classification":
        return numbers(n, CLASSES).softmax(1), whole(CLASSES, n)
    if area == "retrieval":
        return numbers(n).sigmoid(), {"target": whole(2, n), "indexes": whole(6, n, seed=5)}
    if area == "nominal":
        if name == "FleissKappa":
            counts = torch.zeros(n, CLASSES, dtype=torch.long)
            counts.scatter_add_(1, whole(CLASSES, n, 8), torch.ones(n, 8, dtype=torch.long))
            return counts, whole(2, n)
        return whole(CLASSES, n), (whole(CLASSES, n) + whole(2, n, seed=5)) % CLASSES
    if area == "clustering":
        if name in {"CalinskiHarabaszScore", "DaviesBouldinScore", "DunnIndex"}:
            return numbers(n, 3), whole(3, n)
        return whole(CLASSES, n), (whole(CLASSES, n) + whole(2, n, seed=5)) % CLASSES
    if area == "regression":
        if "Divergence" in name:
            return numbers(n, CLASSES).softmax(1), near(numbers(n, CLASSES)).softmax(1)
        if name == "CosineSimilarity":
            return numbers(n, 3), near(numbers(n, 3))
        if name == "ContinuousRankedProbabilityScore":
            return numbers(n, 6), near(numbers(n, 6))[:, 0]
        if "Log" in name or "Percentage" in name or "Tweedie" in name or name == "CriticalSuccessIndex":
            return numbers(n, low=0.1), near(numbers(n, low=0.1)).abs()
        return numbers(n), near(numbers(n))
    if area == "audio":
        if name.startswith("Complex"):
            return numbers(n, 9, 8, 2), near(numbers(n, 9, 8, 2))
        shape = (
            (n, 2, 600)
            if name in {"PermutationInvariantTraining", "SourceAggregatedSignalDistortionRatio"}
            else (n, 600)
        )
        return numbers(*shape), near(numbers(*shape))
    if area == "image":
        if name in {"QualityWithNoReference", "SpatialDistortionIndex"}:
            return numbers(n, 3, 32, 32).sigmoid(), {
                "ms": near(numbers(n, 3, 16, 16)).sigmoid(),
                "pan": numbers(n, 3, 32, 32).sigmoid(),
                "pan_lr": numbers(n, 3, 16, 16).sigmoid(),
            }
        channels = 1 if name == "PeakSignalNoiseRatioWithBlockedEffect" else 3
        size = 48
        images = numbers(n, channels, size, size).sigmoid()
        return images, near(numbers(n, channels, size, size)).sigmoid()
    if area == "detection":
        return whole(2, n, 12, 12, 2) * torch.tensor([6, 1]), whole(2, n, 12, 12, 2, seed=4) * torch.tensor([6, 1])
    if area == "segmentation":
        one_hot = torch.nn.functional.one_hot
        return one_hot(whole(3, n, 8, 8), 3).movedim(-1, 1), one_hot(whole(3, n, 8, 8, seed=4), 3).movedim(-1, 1)
    if area == "shape":
        return numbers(n, 10, 3), near(numbers(n, 10, 3))
    if area == "multimodal":
        return numbers(n, 10, 3), near(numbers(n, 10, 3))
    if area == "text":
        if name == "Perplexity":
            return numbers(n, 6, CLASSES), whole(CLASSES, n, 6)
        if name == "SQuAD":
            found, right = texts(n, 1), texts(n, 2)
            return (
                [{"prediction_text": text, "id": str(place)} for place, text in enumerate(found)],
                [
                    {"answers": {"answer_start": [1], "text": [text]}, "id": str(place)}
                    for place, text in enumerate(right)
                ],
            )
        if name in {"BLEUScore", "SacreBLEUScore", "CHRFScore", "TranslationEditRate", "ExtendedEditDistance"}:
            return texts(n, 1), [[text] for text in texts(n, 2)]
        return texts(n, 1), texts(n, 2)
    return None, None


RANDOM = {"BootStrapper", "KernelInceptionDistance", "InceptionScore"}
"""Classes that draw random numbers: only the bits of several groups are compared."""

PRETRAINED = {"BERTScore", "CLIPImageQualityAssessment", "CLIPScore", "InfoLM"}
"""Classes that download a model of transformers."""


BY_HAND = dict.fromkeys(
    (
        *("MeanAveragePrecision", "IntersectionOverUnion", "GeneralizedIntersectionOverUnion"),
        *("DistanceIntersectionOverUnion", "CompleteIntersectionOverUnion"),
    ),
    "torchvision 0.29.1 and torch 2.14.1",
)
"""Classes that `with_torchvision.py` tries in an environment of its own, which is too large for each run."""

OWN_NETWORK = {
    "FrechetInceptionDistance": "fid",
    "KernelInceptionDistance": "kid",
    "InceptionScore": "inception",
    "MemorizationInformedFrechetInceptionDistance": "mifid",
}
"""Classes with a trained network that may be replaced by a small one, and their modules."""


def of_images(kind):
    """A metric of images with a small network of its own; one of real and made images takes both in an update."""
    import torch
    from torch import nn

    class Features(nn.Module):
        num_features = 6

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3 * 48 * 48, 6, generator=torch.Generator().manual_seed(8)) / 80)

        def forward(self, images):
            return images.flatten(1).to(self.weight.dtype) @ self.weight

    class Both(kind):
        def update(self, preds, target):
            super().update(target, real=True)
            super().update(preds, real=False)

    if kind.__name__ == "InceptionScore":
        return kind(feature=Features(), normalize=True, splits=2)
    sizes = {"subsets": 4, "subset_size": 3} if kind.__name__.startswith("Kernel") else {}
    return Both(feature=Features(), normalize=True, **sizes)


def made(area, name, kind):
    """A new object of a class."""
    import torchmetrics
    from torchmetrics import regression

    error, accuracy = regression.MeanSquaredError, torchmetrics.classification.MulticlassAccuracy
    given = {
        "Running": lambda: kind(torchmetrics.SumMetric(), window=3),
        "BootStrapper": lambda: kind(error()),
        "MinMaxMetric": lambda: kind(error()),
        "MetricTracker": lambda: kind(error()),
        "MultioutputWrapper": lambda: kind(error(), 2),
        "MultitaskWrapper": lambda: kind({"one": error()}),
        "ClasswiseWrapper": lambda: kind(accuracy(num_classes=CLASSES, average=None)),
        "LambdaInputTransformer": lambda: kind(error(), lambda preds: 2 * preds),
        "BinaryTargetTransformer": lambda: kind(torchmetrics.classification.BinaryAccuracy(), threshold=0),
        "CompositionalMetric": lambda: error() + 2 * regression.MeanAbsoluteError(),
        "MetricCollection": lambda: kind({"error": error(), "absolute": regression.MeanAbsoluteError()}),
        "PermutationInvariantTraining": lambda: kind(torchmetrics.functional.audio.scale_invariant_signal_noise_ratio),
    }
    if name in given:
        return given[name]()
    if name in OWN_NETWORK:
        return of_images(kind)
    function = kind.__new__ if "__new__" in vars(kind) else kind.__init__
    parameters = inspect.signature(function).parameters.values()
    arguments = {
        one.name: ARGUMENTS[one.name]
        for one in parameters
        if one.name in ARGUMENTS
        and (one.default is one.empty or one.name in {"num_classes", "num_labels", "num_outputs"})
    }
    if area == "regression":
        arguments.pop("num_outputs", None)
    if one_default := SPECIAL.get(name):
        arguments |= one_default
    return kind(**arguments)


def classes():
    """Every public class of torchmetrics by name, with its area; and those that other packages would add."""
    import torchmetrics

    found, missing = {"MetricCollection": ("wrappers", torchmetrics.MetricCollection)}, {}
    from torchmetrics.metric import CompositionalMetric

    found["CompositionalMetric"] = "wrappers", CompositionalMetric
    for name, module in OWN_NETWORK.items():
        found[name] = "image", getattr(importlib.import_module(f"torchmetrics.image.{module}"), name)
    found["ROUGEScore"] = "text", importlib.import_module("torchmetrics.text.rouge").ROUGEScore
    for area in AREAS:
        module = importlib.import_module(f"torchmetrics.{area}")
        for name, kind in vars(module).items():
            is_public = not name.startswith("_") and name not in {"Metric", "BaseAggregator", "MetricInputTransformer"}
            if is_public and inspect.isclass(kind) and issubclass(kind, torchmetrics.Metric):
                found.setdefault(name, (area, kind))
        tree = ast.parse(Path(module.__file__).read_text())
        for branch in ast.walk(tree):
            if isinstance(branch, ast.If):
                packages = sorted(set(re.findall(r"_(\w+?)_AVAILABLE|_TORCHVISION", ast.unparse(branch.test))))
                for node in ast.walk(branch):
                    if isinstance(node, ast.ImportFrom):
                        for alias in node.names:
                            missing.setdefault(alias.name, (area, ", ".join(packages).lower().replace("_", "-")))
    return found, {name: row for name, row in missing.items() if name not in found and not name.islower()}


def parts_of(structure, sizes):
    """The batches of a structure."""
    from sidecar.evaluation.backends.torch.torchmetrics_metric import _part

    ends = np.cumsum(sizes)
    return [_part(structure, int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def flat(result):
    """All numbers in a result of torchmetrics."""
    import torch

    if isinstance(result, dict):
        return [number for part in result.values() for number in flat(part)]
    if isinstance(result, tuple | list):
        return [number for part in result for number in flat(part)]
    return torch.as_tensor(result).double().reshape(-1).tolist()


def of_result(result):
    """All numbers in ours."""
    values = [*result.values.values(), *(one for several in result.classes.values() for one in several.values())]
    return [float.fromhex(one.hex) for one in values]


def attempt(name, area, kind):
    """Evaluate with one to four ranks, and with torchmetrics alone."""
    if name in PRETRAINED:
        return Tried(area, "a trained model of transformers", "other packages")
    from sidecar.evaluation.failures import EvaluationError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made(area, name, kind)
        except (ImportError, RuntimeError) as error:
            return Tried(area, _package(error), "other packages")
        sizes = FEW if area in {"image", "audio", "detection", "shape", "multimodal", "segmentation"} else BATCHES
        predictions, y = (parts_of(part, sizes) for part in data(area, name, sizes))
        batches = list(zip(predictions, y, strict=True))
        try:
            tried = [of_ranks(partial(made, area, name, kind), batches, ranks, sizes) for ranks in (1, 2, 3, 4)]
        except EvaluationError as error:
            needed = "torchvision to be installed" in str(error)
            return Tried(area, *(("torchvision", "other packages") if needed else (str(error), "refused")))
        results, in_turn = [result for result, _ in tried], tried[0][1]
        expected = results[0] if name in RANDOM else alone(made(area, name, kind), batches)
    close = len(expected) == len(results[0]) and all(
        math.isclose(ours, theirs, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(ours) and math.isnan(theirs))
        for ours, theirs in zip(results[0], expected, strict=False)
    )
    bits = len({str([number.hex() for number in result]) for result in results})
    reason = None if close and bits == 1 else f"WRONG: {results[0][:3]} against {expected[:3]}, {bits} results"
    right = "in turn" if in_turn else "right"
    return Tried(area, reason, right if reason is None else "wrong", bits, close)


def _package(error):
    """The package that a class asks for."""
    said = str(error)
    named = re.search(r"pip install (?!torchmetrics)([\w-]+)", said) or re.search(r"`(\w+)`", said)
    return named[1].replace("_", "-")


def of_ranks(make, batches, ranks, sizes):
    """The numbers of a group; each rank has every nth batch."""
    import torch

    from sidecar.evaluation.backends.torch.torchmetrics_members import TorchMetrics
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.metrics.metric import EvalSetInfo

    group = [TorchMetrics([(None, make())], torch.device("cpu")) for _ in range(ranks)]
    for one in group:
        one.arrays(batches[0][1], batches[0][0], None, sizes[0])  # where it is found which metrics are updated in turn
        one.begin()
    divided = 1 if group[0].reasons else ranks
    changes = [
        group[number % divided].arrays(y, predictions, None, sizes[number])
        for number, (predictions, y) in enumerate(batches)
    ]
    states = [one.states(EvalSetInfo(sum(sizes), Shard(rank, ranks))) for rank, one in enumerate(group)]
    for number, arrays in enumerate(changes):
        first = sum(sizes[:number])
        owner = group[number % divided]
        owner.add(states[number % divided], [[array] for array in arrays], [first])
        owner.update_in_turn(owner.inputs(*batches[number][::-1]), partial(torch.manual_seed, number))
    for rank, one in enumerate(group):
        one.conclude(states[rank], is_first=rank == 0)
    for name in states[0]:
        rows = np.sum([own[name].used() for own in states], axis=0) > 0
        total = np.sum([own[name].pack(rows) for own in states], axis=0)
        for own in states:
            own[name].unpack(total, rows)
    assert not group[0].begins_again([states[0]])
    return of_result(group[0].compute(states[0])), bool(group[0].reasons)


def alone(metric, batches):
    """Return what torchmetrics says in one process."""
    names = list(inspect.signature(getattr(metric, "base_metric", metric).update).parameters)
    metric.reset()
    for predictions, y in batches:
        if isinstance(y, dict) and set(y) <= set(names):
            metric.update(predictions, **y)
        elif len(names) == 1 or names[1:] == ["weight"]:
            metric.update(predictions)
        else:
            metric.update(predictions, y)
    return flat(metric.compute())


IN_TURN = "right, [in turn](../how-to/metrics.md#metrics-that-cannot-be-added-up)"


def states_of(name):
    """Return what the source of a class says about its states, which decides how it is evaluated."""
    import torchmetrics

    kinds = set()
    for path in sorted(Path(torchmetrics.__file__).parent.rglob("*.py")):
        if f"class {name}(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_state":
                reductions = [each.value for each in node.keywords if each.arg == "dist_reduce_fx"]
                kinds |= {ast.unparse(each).strip("'") for each in reductions}
    if kinds == {"sum"}:
        return "its states are sums, which are merged"
    if kinds and kinds <= {"sum", "cat", "None"}:
        return "its states are lists of tensors, which are merged"
    return "merged if its states are sums or lists of tensors, otherwise in turn"


def table(tried):
    """The markdown of the docs."""
    right, in_turn = (sum(one.kind == kind for one in tried.values()) for kind in ("right", "in turn"))
    lines = [
        "# torchmetrics",
        "",
        f"Which of the {len(tried)} public classes of torchmetrics can be evaluated by several workers. Each is tried",
        "by a test on uneven batches: 1 to 4 ranks must give the same bits, and the number of one process.",
        f"{right} are right, and {in_turn} more in turn, by worker 0 alone.",
        "Written by `tests/evaluation/backends/torch/every_torchmetric.py`.",
        "",
        "| class | area | |",
        "|---|---|---|",
    ]
    for name, one in sorted(tried.items()):
        text = one.reason or ""
        said = {
            "by hand": f"right, tried by hand with {BY_HAND.get(name)}",
            "right": "right",
            "in turn": IN_TURN,
            "refused": f"refused: {text}",
            "other packages": f"{states_of(name)}; the test lacks what it needs: {text}",
        }
        kind = "by hand" if name in BY_HAND else one.kind
        lines.append(f"| `{name}` | {one.area} | {said.get(kind, text)} |".replace("\n", " "))
    return "\n".join(lines) + "\n"


def every():
    """Try all of them."""
    found, missing = classes()
    tried = {name: attempt(name, area, kind) for name, (area, kind) in found.items()}
    return tried | {
        name: Tried(area, packages or "transformers", "other packages") for name, (area, packages) in missing.items()
    }


def main():
    """Write the table of all metrics of torchmetrics."""
    TABLE.write_text(table(every()))


if __name__ == "__main__":
    main()
