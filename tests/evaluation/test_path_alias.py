"""Give libraries a path that they can read."""

import errno

from evaluation.backends.python.tasks import (
    run,
    task,
)


def test_a_checkpoint_that_this_user_cannot_reach_has_not_vanished(checkpoint, tmp_path, system_calls):
    """Another node may be able to read it. Root can read everything, so the refusal is faked."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    system_calls.refuse("scandir", errno.EACCES)
    (end,) = run(task(load=refuse), checkpoint, tmp_path / "a")
    assert end.kind == "storage"
    assert f"{checkpoint} cannot be reached: Permission denied" in str(end)
