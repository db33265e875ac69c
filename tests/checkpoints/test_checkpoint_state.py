import pytest

from sidecar.checkpoints.formats.checkpoint_state import named_in


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
