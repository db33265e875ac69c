"""TensorBoard's own reader and a real server show every number once, as the nearest float, whatever was killed."""

import ctypes
import json
import math
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pytest
from publishing.sinks.conftest import BEGIN, RUN, value
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.pr_curve import metadata as pr_curve
from tensorboard.util import tensor_util
from tensorboard_reader import read_events

from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.metrics import BinnedAUC
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError
from sidecar.publishing.sinks.tensorboard import TensorBoard

PATIENCE_SECONDS = 240


WITHOUT_TENSORFLOW = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # its own switch: TensorFlow takes seconds
from tensorboard.main import run_main
run_main()
"""


FILE = f"events.out.tfevents.sidecar.mnist.{RUN}.0"

open_url = build_opener(ProxyHandler({})).open


def nearest(number):
    """The float of 32 bits that is nearest to a number."""
    return ctypes.c_float(number).value


def test_its_reader_has_every_number(tmp_path, evaluation, scalars):
    """One run for each eval set; intervals are series of their own."""
    sink = TensorBoard(tmp_path / "logs", "mnist")
    numbers = [0.1 + 0.2, 1e-300, -0.0, math.inf, -math.inf, math.pi, 1e300, -3.5e38]
    for index, number in enumerate(numbers):
        metrics = {"loss": value(number), "accuracy": value(0.75, lower=0.7, upper=0.8)}
        sink.write(evaluation(100 * index, metrics, ("test", "hard/ones")))
    for run in ("test", "hard%2Fones"):
        read = scalars(tmp_path / "logs" / run)
        assert read.keys() == {"loss", "accuracy", "accuracy/lower", "accuracy/upper"}
        assert [(step, number.hex()) for step, number in read["loss"]] == [
            (100 * index, nearest(number).hex()) for index, number in enumerate(numbers)
        ]
        assert {number for _, number in read["accuracy/upper"]} == {nearest(0.8)}


def test_nan(tmp_path, evaluation, scalars):
    """It is a point like any other."""
    TensorBoard(tmp_path, "mnist").write(evaluation(1, {"loss": value(math.nan)}))
    ((step, number),) = scalars(tmp_path / "test")["loss"]
    assert step == 1
    assert math.isnan(number)


@pytest.mark.parametrize(
    ("eval_set", "folder"), [(".", "%2E"), ("..", "%2E%2E"), ("caf\udce9", "caf%ED%B3%A9"), ("é" * 42, "%C3%A9" * 42)]
)
def test_names_that_no_folder_can_have(tmp_path, evaluation, scalars, eval_set, folder):
    """They are quoted: nothing lies beside the log directory."""
    TensorBoard(tmp_path / "logs", "mnist").write(evaluation(100, {"caf\udce9": value(0.5)}, (eval_set,)))
    assert [each.name for each in (tmp_path / "logs").iterdir()] == [folder]
    assert list(scalars(tmp_path / "logs" / folder).values()) == [[(100, 0.5)]]
    assert [each.name for each in tmp_path.iterdir()] == ["logs"]


def test_a_name_too_long_for_a_folder(tmp_path, evaluation):
    """It is refused, so that the results behind it are delivered."""
    with pytest.raises(SinkRefusedError, match=r"'x{40,}.*too long"):
        TensorBoard(tmp_path / "logs", "mnist").write(evaluation(100, {"loss": value(0.5)}, ("x" * 256,)))


def test_tags_of_the_former_evaluator(tmp_path, evaluation, scalars):
    """Dashboards of people who had `tf_keras.utils.SidecarEvaluator` stay as they are."""
    sink = TensorBoard(tmp_path, "mnist", "keras")
    sink.write(evaluation(1, {"accuracy": value(0.75, lower=0.7, upper=0.8)}, ("validation",)))
    assert scalars(tmp_path / "validation").keys() == {
        "evaluation_accuracy_vs_iterations",
        "evaluation_accuracy_lower_vs_iterations",
        "evaluation_accuracy_upper_vs_iterations",
    }


def test_a_second_delivery_writes_nothing(tmp_path, evaluation, scalars):
    """Neither by the same daemon nor by that of another node."""
    first, second = TensorBoard(tmp_path, "mnist"), TensorBoard(tmp_path, "mnist")
    for sink in (first, first, second, first):
        sink.write(evaluation(1, {"loss": value(0.5)}))
    second.write(evaluation(2, {"loss": value(0.25)}))
    first.write(evaluation(2, {"loss": value(0.25)}))
    first.write(evaluation(3, {"loss": value(0.125)}))
    assert scalars(tmp_path / "test")["loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_two_runs_of_one_name_share_a_directory(tmp_path, evaluation, scalars):
    """Nothing of the second is taken for an event of the first, whose times are later."""
    first, second = TensorBoard(tmp_path, "ckpts"), TensorBoard(tmp_path, "ckpts")
    for step in (1, 2):
        first.write(replace(evaluation(step + 10, {"loss": value(1.0)}), id="aa-1"))
        second.write(replace(evaluation(step, {"loss": value(0.5)}), id="bb-1"))
    assert sorted(scalars(tmp_path / "test")["loss"]) == [(1, 0.5), (2, 0.5), (11, 1.0), (12, 1.0)]


def test_a_checkpoint_that_is_evaluated_again(tmp_path, evaluation, scalars):
    """An earlier step that comes later leaves the others as they are."""
    sink = TensorBoard(tmp_path, "mnist")
    for step in (100, 200):
        sink.write(evaluation(step, {"loss": value(step / 1000)}))
    again = evaluation(100, {"loss": value(0.5)})
    sink.write(replace(again, milliseconds=BEGIN + 9000))
    assert scalars(tmp_path / "test")["loss"] == [(100, nearest(0.1)), (200, nearest(0.2)), (100, 0.5)]


def test_what_is_not_a_file_is_not_followed(tmp_path, evaluation):
    """A link that somebody planted, a FIFO, a file instead of a folder: said, and tried again later."""
    (tmp_path / "mine").write_text("mine")
    for make in (lambda path: path.symlink_to(tmp_path / "mine"), os.mkfifo, os.mkdir):
        folder = tmp_path / "logs" / "test"
        folder.mkdir(parents=True, exist_ok=True)
        make(folder / FILE)
        with pytest.raises(SinkUnavailableError, match="tfevents"):
            TensorBoard(tmp_path / "logs", "mnist").write(evaluation(1, {"loss": value(0.5)}))
        (folder / FILE).rmdir() if (folder / FILE).is_dir() else (folder / FILE).unlink()
    assert (tmp_path / "mine").read_text() == "mine"
    (folder / FILE).hardlink_to(tmp_path / "mine")
    TensorBoard(tmp_path / "logs", "mnist").write(evaluation(1, {"loss": value(0.5)}))  # to another file
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(SinkUnavailableError, match="mine"):
        TensorBoard(tmp_path / "mine", "mnist").write(evaluation(1, {"loss": value(0.5)}))


def test_a_checkpoint_without_a_step(tmp_path, evaluation):
    """TensorBoard has no place for it."""
    given = evaluation(1, {"loss": value(0.5)})
    with pytest.raises(SinkRefusedError, match="no training step"):
        TensorBoard(tmp_path, "mnist").write(replace(given, checkpoint=replace(given.checkpoint, step=None)))


def scored(folder, evaluation, bins=20):
    """Scores of two ranks that `BinnedAUC` has counted, as the sink reads them, with labels and scores."""
    generator = np.random.default_rng(5)
    labels, scores = generator.integers(0, 2, 400), generator.integers(0, 4 * bins, 400) / (4 * bins)
    saves = ("a/worker-0-of-2", "a/worker-1-of-2")
    for rank, each in enumerate(saves):
        metric = BinnedAUC(bins=bins, name="auc")
        states = metric.states(EvalSetInfo(400, Shard(rank, 2)))
        own = slice(200 * rank, 200 * rank + 200)
        metric.add(states, EvalBatch(y=labels[own], predictions=scores[own], first=200 * rank, examples=200))
        content = {"test": {f"auc/{name}": state.to_json() for name, state in states.items()}}
        (folder / each).mkdir(parents=True)
        (folder / each / "states.json").write_text(json.dumps({"schema": 1, "states": content}))
    given = evaluation(100, {"loss": value(0.1 + 0.2), "roc_auc": value(0.5), "pr_auc": value(0.5)}, ("test", "hard"))
    return replace(given, result=replace(given.result, saves=saves)), labels, scores


@pytest.mark.parametrize(("bins", "count"), [(20, 21), (400, 201), (997, 998)])
def test_scores_that_were_counted_are_a_pr_curve(tmp_path, evaluation, bins, count):
    """At each threshold, as counted from the scores themselves; without the states there are numbers alone."""
    given, labels, scores = scored(tmp_path / "state", evaluation, bins)
    read = PosixStorage(tmp_path / "state").read
    TensorBoard(tmp_path / "logs", "mnist", read=read).write(given)
    events = read_events(tmp_path / "logs" / "test")
    (event,) = events.Tensors("pr_auc/pr_curves")
    found = tensor_util.make_ndarray(event.tensor_proto)
    thresholds = np.arange(count) / (count - 1)
    positive = np.floor(scores * bins) / bins >= thresholds[:, np.newaxis] - 1e-9
    true, false = (positive & (labels == 1)).sum(1), (positive & (labels == 0)).sum(1)
    of_predicted = np.divide(true, true + false, out=np.zeros(count), where=true > 0)
    expected = [true, false, (labels == 0).sum() - false, (labels == 1).sum() - true]
    assert np.array_equal(found, np.float32([*expected, of_predicted, true / (labels == 1).sum()]))
    content = events.SummaryMetadata("pr_auc/pr_curves").plugin_data.content
    assert pr_curve.parse_plugin_metadata(content).num_thresholds == count
    for lost in (lambda _: None, lambda _: b"{", PosixStorage(tmp_path).read):
        TensorBoard(tmp_path / str(id(lost)), "mnist", read=lost).write(given)
        assert "pr_auc" in read_events(tmp_path / str(id(lost)) / "test").Tags()["scalars"]
        assert read_events(tmp_path / str(id(lost)) / "test").Tags()["tensors"] == []


def test_parameters_are_those_of_the_newest_start(tmp_path, evaluation):
    """They are written again only if they changed."""
    first = None
    for step, rate in enumerate((0.5, 0.5, 0.25)):
        given = {"rate": rate, "name": "a", "flag": True}
        event = evaluation(step, {"loss": value(0.5)})
        first = first if step == 1 else event.milliseconds
        TensorBoard(tmp_path, "mnist", parameters=given).write(event)
        metadata = read_events(tmp_path).SummaryMetadata("_hparams_/session_start_info")
        start = hparams.parse_session_start_info_plugin_data(metadata.plugin_data.content)
        assert start.hparams["rate"].number_value == rate
        assert (start.hparams["name"].string_value, start.hparams["flag"].bool_value) == ("a", True)
        assert start.start_time_secs == first / 1000


def test_a_real_server_shows_them(tmp_path, evaluation):
    """As a browser asks it; what is written while it runs, too."""
    given, *_ = scored(tmp_path / "state", evaluation)
    read = PosixStorage(tmp_path / "state").read
    sink = TensorBoard(tmp_path / "logs" / "first", "mnist", parameters={"rate": 0.5}, read=read)
    sink.write(given)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = ["--logdir", tmp_path / "logs", "--port", port, "--host", "127.0.0.1", "--reload_interval", "1"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", WITHOUT_TENSORFLOW, *map(str, words)], stdout=log, stderr=log, cwd=tmp_path
        ) as running,
    ):
        try:
            until(lambda: sorted(asked(port, "runs")) == ["first", "first/hard", "first/test"])
            sink.write(evaluation(200, {"loss": value(1 / 3)}, ("test", "hard")))
            until(lambda: len(asked(port, "plugin/scalars/scalars", run="first/test", tag="loss")) == 2)
            points = asked(port, "plugin/scalars/scalars", run="first/test", tag="loss")
            curves = asked(port, "plugin/pr_curves/pr_curves", run="first/test", tag="pr_auc/pr_curves")
            wanted = {"startIndex": 0, "sliceSize": 9, "allowedStatuses": ["STATUS_UNKNOWN"]}
            wanted["colParams"] = [{"metric": {"group": "test", "tag": "loss"}}, {"hparam": "rate"}]
            table = asked(port, "plugin/hparams/session_groups", request=json.dumps(wanted))
        finally:
            running.kill()
    assert [(step, number.hex()) for _, step, number in points] == [
        (100, nearest(0.1 + 0.2).hex()),
        (200, nearest(1 / 3).hex()),
    ]
    ((curve,),) = curves.values()
    assert (curve["step"], len(curve["thresholds"]), curve["thresholds"][1]) == (100, 20, 0.05)  # it trims the end
    (row,) = table["sessionGroups"]
    assert row["hparams"] == {"rate": 0.5}
    assert ("loss", nearest(1 / 3)) in {(each["name"]["tag"], each["value"]) for each in row["metricValues"]}
    assert [moment for moment, _, _ in points] == [(BEGIN + 1000) / 1000, (BEGIN + 2000) / 1000]


def asked(port, path, **query):
    """Return what the server answers; nothing while it does not answer."""
    try:
        with closing(open_url(f"http://127.0.0.1:{port}/data/{path}?{urlencode(query)}", timeout=60)) as answer:
            return json.load(answer)
    except (URLError, ConnectionError):
        return []


def until(condition):
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
