"""The keys of a listing are those of files of a state directory, or are passed over."""

from sidecar.publishing.state_backup.backup_objects import is_part


def test_names_of_a_backup_are_not_trusted():
    """Only files of a state directory are parts of a backup, and none leads out of it."""
    good = ("run.json", "snapshot.json.gz", "early_stop.json", "plans/000000000001.json", "sinks/dead_letters/x.json")
    good += ("evaluations/ckpt-1@abc/plan-1/worker-0-of-1/weights/model.npz", "segments/000000000001.jsonl.gz")
    good += ("exports/ckpt-1@abc/.fetched.json",)
    bad = ("", "/etc/passwd", "../run.json", "plans/../run.json", "plans//x.json", "plans/./x", "run.json/x", "plans")
    bad += (
        "state_backup.json",
        "members/n.json",
        "pins/a/b",
        "exports/best",
        "evaluations/.part",
        "copies/000001.json",
    )
    bad += ("exports/.fetched.json/x", "evaluations/.x/.fetched.json")
    bad += (
        "plans/a\nb.json",
        "plans/a\0b.json",
        "evaluations/" + "x" * 256,
        "sinks/" + "d/" * 20 + "x",
        "plans/\x1b[2J",
        "plans/abc.json",
        "plans/1/2.json",
        "outcomes/00000000000².json",
        "segments/zzz.gz",
    )
    assert [name for name in good if not is_part(name)] == []
    assert [name for name in bad if is_part(name)] == []
