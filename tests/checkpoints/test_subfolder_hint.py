"""Tell which setting finds the checkpoints that lie in folders where nobody looks."""

import shutil
from pathlib import Path

import pytest
from fakes import put

from sidecar.checkpoints.subfolder_hint import SubfolderHint, of_several_runs, remedy_below, similar_folder
from sidecar.system.bounded_calls import HangingError


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


@pytest.mark.parametrize(
    ("folders", "setting"),
    [
        (["epoch_1", "epoch_2"], '"epoch_*/*"'),
        (["run-7/checkpoints"], '"run-*/checkpoints/*"'),
        (["a[1]", "b"], '"a[[]*]/*,b/*"'),
        (["a", "b", "c", "d"], '"*/*"'),
    ],
)
def test_checkpoints_that_nobody_asked_for(root, new_catalog, folders, setting):
    """Where nothing is found, one sentence says what to set; and that setting finds them."""
    for folder in folders:
        put(root / folder, 1)
    remedy = new_catalog().scan().below
    assert remedy.endswith(f"set checkpoint_glob = {setting}")
    glob = tuple(setting.strip('"').split(","))
    scan = new_catalog(checkpoint_glob=glob).scan()
    assert sorted(names(scan)) == sorted(f"{folder}/ckpt-1" for folder in folders)
    assert scan.below is None


def test_sub_folders_are_searched_now_and_then(root, clock):
    """Between two searches, and while one hangs, the result of the last search stays."""
    searches, hangs = [], False

    def calls(key, function):
        searches.append(key)
        if hangs:
            raise HangingError(key, "has not answered")
        return function()

    hint = SubfolderHint(root, None, calls, clock)
    assert hint.remedy(0.0) is None
    put(root / "epoch_1", 1)
    assert (hint.remedy(29.0), len(searches)) == (None, 1)
    assert (remedy := hint.remedy(30.0)) == remedy_below(root)
    hangs = True
    assert (hint.remedy(60.0), len(searches)) == (remedy, 3)


def test_a_slow_search_is_repeated_later(root, clock):
    """100,000 names take a part of a second each time, and nobody waits for the answer."""
    searches = []

    def calls(key, function):
        searches.append(key)
        clock.seconds += 0.2
        return function()

    hint = SubfolderHint(root, None, calls, clock)
    for now in (0.0, 30.0, 199.0, 201.0):
        hint.remedy(now)
    assert len(searches) == 2


def test_a_search_reads_only_names_that_may_be_checkpoints(root, system_calls):
    """Other files are not asked for their times."""
    asked = []
    system_calls.observe("stat", lambda path, **_: asked.append(str(path)))
    put(root / "epoch_1", 1)
    for number in range(20):
        (root / f"events.out.tfevents.{number}").touch()
    assert remedy_below(root) is not None
    assert not [name for name in asked if name.startswith("events")]


def test_no_remedy_where_there_is_none_to_give(root, new_catalog, clock):
    """Something is found, or there is nothing; a model that is being written is no folder of checkpoints."""
    assert new_catalog().scan().below is None
    put(root / "model" / "variables", 1)
    put(root / "state", 1)
    assert remedy_below(root, "state") is None
    put(root / "epoch_1", 1)
    put(root, 1)
    assert new_catalog().scan().below is None
    (root / "ckpt-1.index").unlink()
    seen = new_catalog()
    shutil.move(root / "epoch_1", root.parent / "epoch_1")
    shutil.rmtree(root / "state")
    assert seen.scan().below is None
    shutil.move(root.parent / "epoch_1", root / "epoch_1")
    clock.seconds += 30
    assert "epoch_*/*" in seen.scan(set()).below


def test_folders_that_look_like_runs_of_their_own(root, new_catalog):
    """Where the same steps occur again, one curve of all would be wrong; epochs in folders of their own are one run."""
    for folder in ("exp1", "exp2"):
        for step in (1, 2):
            put(root / folder, step)
    remedy = new_catalog().scan().below
    assert remedy.startswith("exp1, exp2 look like 2 runs")
    assert f"`sidecar run {root}/exp1`" in remedy
    assert remedy.endswith('if all of it is one run, set checkpoint_glob = "exp*/*"')


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        ({"exp1": ["ckpt-5"], "exp2": ["ckpt-5"]}, "exp1, exp2"),
        ({"adam": ["best.pt"], "sgd": ["best.pt"]}, "adam, sgd"),
        ({"exp1/step-5": ["model.pt"], "exp2/step-5": ["model.pt"], "exp2/step-10": ["model.pt"]}, "exp1, exp2"),
        (
            {f"version_{number}/checkpoints": ["epoch=1-step=30.ckpt"] for number in (0, 1)},
            "version_0/checkpoints, version_1/checkpoints",
        ),
    ],
)
def test_one_checkpoint_in_each_run(names, runs):
    """Folders whose names say neither a step nor which checkpoint it is are runs, if the same one occurs in them."""
    sentence = of_several_runs(Path("/runs"), names)
    assert sentence.startswith(f"{runs} look like 2 runs")
    assert f"`sidecar run /runs/{runs.partition(',')[0]}`" in sentence


@pytest.mark.parametrize(
    "names",
    [
        {"epoch_1": ["ckpt-5"], "epoch_2": ["ckpt-5"]},  # one checkpoint in each
        {"step=10": ["model.pt"], "step=20": ["model.pt"]},
        {"global_step100": ["mp_rank_00.pt"], "global_step200": ["mp_rank_00.pt"]},
        {"100": ["model.pt"], "200": ["model.pt"], "best": ["model.pt"], "last": ["model.pt"]},
        {"epoch_1": ["netD.pt", "netG.pt"], "epoch_2": ["netD.pt", "netG.pt"]},  # two models in each
        {"part_1": ["ckpt-5", "ckpt-6"], "part_2": ["ckpt-7", "ckpt-8"]},  # the steps go on
    ],
)
def test_folders_of_one_run(names):
    """Nothing in them says that training began again."""
    assert of_several_runs(Path("/runs"), names) is None


def test_a_folder_with_a_similar_name(root):
    """A typo is named before anybody waits for the folder."""
    (root.parent / "ckpts").mkdir(exist_ok=True)
    assert similar_folder(root.parent / "ckpt") == "did you mean ckpts?"
    assert similar_folder(root.parent / "ckpts") == ""
    assert similar_folder(root.parent / "weights") == ""
    assert similar_folder(root / "nowhere" / "ckpts") == ""
