"""Tell the version of this program: the one that a build wrote down or, in a clone, the one that git tells.

`hatch_build.py` writes the version into the copies of this file in wheels and sdists, and `git archive` writes the
commit into the copy in an archive (`.gitattributes`). Standard library only, for the build.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Final

NEXT: Final = "0.2.0"
"""The release that the commits before the first tag lead to. From that tag on, the newest tag tells it."""

FALLBACK: Final = f"{NEXT}.dev0"
"""The version of sources that come from no build and no archive, where git tells nothing either."""

_BUILT: Final[str] = ""
_ARCHIVED: Final[str] = "$Format:%H %(describe:tags=true,match=v[0-9]*)$"
_TAGGED: Final = re.compile(r"v(?P<tag>\d[\w.]*)(-(?P<count>\d+)-g(?P<commit>[0-9a-f]{7,40}))?(?P<dirty>-dirty)?")
_UNTAGGED: Final = re.compile(r"(?P<commit>[0-9a-f]{7,40})(?P<dirty>-dirty)?")
_DIGITS: Final = 8  # of a commit
_SECONDS: Final = 10.0  # for an answer of git


@cache
def version() -> str:
    """Return the version: `0.2.0` of a release, `0.2.0.dev425+g4a3370ab` of the 425th commit before it.

    `.dirty` at its end means that files of the clone differ from the commit. The version is for people: no two nodes
    decide by it whether they evaluate together (`sidecar.evaluation.source_digest`).
    """
    root = Path(__file__).resolve().parents[1]
    if _BUILT:
        return _BUILT
    if not _ARCHIVED.startswith("$"):
        return of_archive(_ARCHIVED)
    return of_clone(root) if (root / ".git").exists() else FALLBACK


def of_archive(written: str) -> str:
    """Return the version of an archive, of what git wrote into it: the commit and, if it has one, the newest tag."""
    commit, _, described = written.partition(" ")
    if tagged := _TAGGED.fullmatch(described):
        return _after(tagged["tag"], int(tagged["count"] or 0), commit)
    return f"{FALLBACK}+g{commit[:_DIGITS]}" if _UNTAGGED.fullmatch(commit) else FALLBACK


def of_clone(root: Path) -> str:
    """Return the version of a clone, by its newest tag `v…` and the number of commits since then."""
    described = _git(root, "describe", "--tags", "--long", "--always", "--dirty", "--abbrev=8", "--match=v[0-9]*")
    if tagged := _TAGGED.fullmatch(described):
        return _after(tagged["tag"], int(tagged["count"] or 0), tagged["commit"] or "", tagged["dirty"])
    if found := _UNTAGGED.fullmatch(described):
        count = _git(root, "rev-list", "--count", "HEAD")
        return f"{NEXT}.dev{count or 0}{_local(found['commit'], found['dirty'])}"
    return FALLBACK


def _after(tag: str, count: int, commit: str, dirty: str | None = None) -> str:
    """Return the version that is `count` commits after a tag: a development version of the release after it."""
    if not count and not dirty:
        return tag
    following = re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), tag)
    return f"{following}.dev{count}{_local(commit, dirty)}"


def _local(commit: str, dirty: str | None) -> str:
    return f"+g{commit[:_DIGITS]}{'.dirty' if dirty else ''}"


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints about a clone; an empty text if it fails, is not installed, or does not answer."""
    from sidecar.system.child import output_of  # noqa: PLC0415 - only a clone needs it

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # nothing is written
    command = ["git", "-C", str(root), *arguments]
    return (output_of(command, seconds=_SECONDS, environment=environment) or "").strip()
