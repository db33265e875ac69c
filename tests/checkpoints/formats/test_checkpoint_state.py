"""Read the state files of TensorFlow, which name checkpoints by path."""

import random

import pytest

from sidecar.checkpoints.formats import checkpoint_state
from sidecar.checkpoints.formats.checkpoint_state import StateFile, named_in


class Everything:
    """As if files of every name lay beside the state file."""

    def __contains__(self, name):
        return bool(name)


NAMES = Everything()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('model_checkpoint_path: "ckpt-1"', "ckpt-1"),
        ('all_model_checkpoint_paths: "ckpt-1"', "ckpt-1"),
        ("all_model_checkpoint_paths : 'ckpt-1'  # comment", "ckpt-1"),
        ('model_checkpoint_path: "{root}/ckpt-1"', "ckpt-1"),
        ('model_checkpoint_path: "./ckpt-1"', "ckpt-1"),
        (r'model_checkpoint_path: "mod\303\250le \"x\"-1"', 'modèle "x"-1'),
        (r'model_checkpoint_path: "a\x41\tb\8"', "aA\tb8"),
        ('model_checkpoint_path: "../checkpoints/ckpt-1"', None),
        ('model_checkpoint_path: "{root}/../checkpoints/ckpt-1"', None),
        ('model_checkpoint_path: "/elsewhere/ckpt-1"', None),
        ('model_checkpoint_path: "sub/ckpt-1"', None),
        ('model_checkpoint_path: "out/ckpt-1"', None),
        ('model_checkpoint_path: "ckpt-1', None),
        ('model_checkpoint_path: ""', None),
        (r'model_checkpoint_path: "a\000/b"', None),
        ('last_preserved_timestamp: 1.5\nfoo_path: "ckpt-1"', None),
    ],
)
def test_paths(root, written, name):
    """Relative or absolute, but directly in the folder and without a way out of it."""
    (root / "out").symlink_to("/")
    (root / "checkpoint").write_text(written.replace("{root}", str(root)) + "\n")
    assert named_in(root, NAMES) == ({name} if name else set())


def test_a_folder_under_another_name(root, tmp_path):
    """Absolute paths through a link to the folder count, as mount points differ."""
    (tmp_path / "link").symlink_to(root)
    (root / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/link/ckpt-1"\n')
    assert named_in(root, NAMES) == {"ckpt-1"}
    assert named_in(tmp_path / "link", NAMES) == {"ckpt-1"}


def test_no_file_and_no_text(root):
    """Nothing is named by a file that is missing or binary."""
    assert named_in(root, NAMES) == frozenset()
    (root / "checkpoint").write_bytes(bytes(range(256)))
    assert named_in(root, NAMES) == frozenset()


def state(names, newest=None) -> str:
    """As TensorFlow's managers write it: the newest, all of them, and when each was saved."""
    lines = [f'all_model_checkpoint_paths: "{name}"' for name in names]
    times = [f"all_model_checkpoint_timestamps: {number}.5" for number, _ in enumerate(names)]
    first = [] if newest is None else [f'model_checkpoint_path: "{newest}"']
    return "\n".join([*first, *lines, *times, "last_preserved_timestamp: 1.5", ""])


def edited(choose, names):
    """The list after a save, or after something that no save does."""
    match choose.randrange(6):
        case 0:
            return [*names[1:], f"ckpt-{choose.randrange(9)}"]
        case 1:
            return [*names, f"ckpt-{choose.randrange(9)}", f"link/ckpt-{choose.randrange(9)}"]
        case 2:
            return choose.sample(names, len(names))
        case 3:
            return names[: choose.randrange(4)]
        case 4:
            return [*names[:2], *names]
        case _:
            return names[2:]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_state_file_names_is_what_one_who_sees_it_first_reads(root, seed):
    """However it changed, also where a path leads; and each read tells which names came or went."""
    choose, names, file = random.Random(seed), [], StateFile(root)
    for now in range(40):
        names = edited(choose, names)
        if choose.random() < 0.1:
            (root / "link").unlink(missing_ok=True)
            (root / "link").symlink_to(choose.choice([".", "elsewhere"]))
        newest = choose.choice([None, *names])
        if choose.random() < 0.1:
            (root / "checkpoint").unlink(missing_ok=True)
        else:
            (root / "checkpoint").write_text(state(names, newest))
        before = set(file.named)
        changed = file.read(4.0 * now)
        assert file.named == named_in(root, NAMES)
        assert changed == before ^ file.named


def test_a_file_that_did_not_change_is_not_read_again(root, monkeypatch):
    """It is opened all the same: on NFS that shows what another machine wrote."""
    read, original = [], checkpoint_state.read_opened
    monkeypatch.setattr(
        checkpoint_state, "read_opened", lambda *arguments, **more: (read.append(1), original(*arguments, **more))[1]
    )
    (root / "checkpoint").write_text(state(["ckpt-1"]))
    file = StateFile(root)
    assert [file.read(now) for now in (0.0, 1.0, 3.0, 5.0, 7.0)] == [{"ckpt-1"}, set(), set(), set(), set()]
    assert len(read) == 3, "until the coarsest clock of a filesystem must have moved on"
    (root / "checkpoint").write_text(state(["ckpt-1", "ckpt-2"]))
    assert file.read(9.0) == {"ckpt-2"}
    assert file.named == {"ckpt-1", "ckpt-2"}
