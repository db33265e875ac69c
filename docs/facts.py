"""Find what the documentation says that the code contradicts. `make docs` and the tests report each finding.

Each check gets the text of one page and yields sentences that say what is wrong. Generated pages need no check. Names
of other projects are in `FOREIGN`. Numbers and lists that pages quote are in `facts_quoted`.
"""

import errno
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
from blocks import ROOT, filled
from facts_quoted import COUNTED, EN_DASH, LISTED, NUMBERS, QUOTED

from sidecar.commands import cli
from sidecar.commands.options import FLAGS
from sidecar.publishing.families import families
from sidecar.settings import Settings

GENERATED: Final = frozenset({"settings.md", "cli.md", "metrics.md", "exit-codes.md", "log-events.md"})
"""Pages of docs/reference/ that `generate` writes."""

OTHER_PROJECTS: Final = frozenset({"docs/scripts.md"})
"""Pages about other projects, whose files and names are not those of this repository."""

FOREIGN: Final[Mapping[str, tuple[str, ...]]] = {
    "waitress": ("channel_timeout",),
    "JAX": ("multihost_utils", "process_allgather"),
    "TensorFlow": ("assign_add", "eval_actions", "evaluate_continuously", "get_file", "pss_evaluation_shards"),
    "Keras": ("stop_evaluating", "swap_on_epoch", "use_ema", "validation_data"),
    "PyTorch": ("aux_head", "sync_dist", "val_dataloader", "weight_g"),
    "pandas, MLflow": ("read_csv", "start_run"),
    "users' names": ("global_step500", "model_1", "model_5", "model_final", "name_of_the_variable", "online_model"),
    "Prometheus": ("basic_auth", "tls_config"),
    "transformers": ("attn_implementation", "flash_attention_2"),
    "names with an end": ("accuracy_lower", "accuracy_upper", "f1_score_0", "f1_score_1", "precision_0"),
    "names with more around them": ("hook_best", "pytorch_model_fsdp_0"),
}
"""Words of code in pages that are not those of this repository, by their origin."""

FOREIGN_OPTIONS: Final = frozenset(
    {"--init", "--profile", "--overlap", "--relative", "--nodes", "--ntasks", "--pids-limit", "--purge"}
)
"""Options that pages name, of docker, Slurm and others."""

_READ: Final = frozenset({".py", ".toml", ".yml", ".yaml", ".conf", ".service", ".js", ".css", ""})
_FENCE: Final = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2`*~*[ ]*$", re.DOTALL | re.MULTILINE)
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_PLACE: Final = re.compile(r"(?<![\w/.<*-])((?:sidecar|tests|docs|deploy|examples|systemd|\.ci)/[\w./@*-]+)")
_QUOTE: Final = re.compile(r'"([^"]+)"')
_WORD: Final = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?!\*)")
_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "million": 10**6, "times": 1}
_MESSAGES: Final = ("| what you see | why, and what to do |", "| the message says | do |")  # tables that quote them
_AMOUNT: Final = rf"(\d[\d,.]*)(?: ({'|'.join(_UNITS)}))?"
_QUOTED_DEFAULT: Final = re.compile(
    rf"`(\w+)`(?: \({_AMOUNT}(?: by default)?\)|, {_AMOUNT}\)| is {_AMOUNT} by default)"
)


_Quotes = Mapping[str, Callable[[], str]]
_Lists = Mapping[tuple[str, int], Callable[[], set[str]]]


def pages() -> list[Path]:
    """Return the pages that people write, with those of the repository that name its parts."""
    generated = {ROOT / "docs/reference" / name for name in GENERATED}
    written = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in generated]
    return [*written, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]


def complaints() -> list[str]:
    """Return a sentence for each statement that the code contradicts, in all pages."""
    return [f"{named(path)}: {each}" for path in pages() for each in stale(named(path), path.read_text("utf-8"))]


def stale(
    page: str, text: str, quoted: Mapping[str, _Quotes] = QUOTED, listed: Mapping[str, _Lists] = LISTED
) -> Iterator[str]:
    """Yield a sentence for each statement of one page that the code contradicts.

    `quoted`, `listed`: the numbers and lists of pages that the code decides.
    """
    if filled(text) != text:
        yield "a generated block is older than the code: run `make reference`"
    prose = _FENCE.sub("", text)
    if page not in OTHER_PROJECTS:
        yield from _lost_places(prose)
        yield from _unknown_words(prose)
    yield from _unknown_families(text)
    yield from _unknown_commands(text)
    yield from _other_defaults(text)
    yield from _other_counts(prose)
    yield from _other_quotes(quoted.get(page, {}), text)
    yield from _other_lists(listed.get(page, {}), text)
    yield from _other_times(text)
    yield from _other_labels(text)
    yield from _unknown_messages(text)


def _lost_places(prose: str) -> Iterator[str]:
    """Yield the paths and the names of tests that do not exist."""
    for span in _SPAN.findall(prose):
        if span.startswith("cd "):
            continue  # its paths are those of another folder
        for place in _PLACE.findall(span):
            if not ((ROOT / place).exists() or ("*" in place and any(ROOT.glob(place)))):
                yield f"`{place}` does not exist"
        for name in re.findall(r"(?<![\w/])(?:\w+/)?test_\w+\.py\b", span):
            if not any((ROOT / "tests").rglob(name)):
                yield f"`{name}` is not a file below tests/"


def _unknown_words(prose: str) -> Iterator[str]:
    """Yield settings, log events, fields and the like that no file of the product has."""
    for span in _SPAN.findall(prose):
        for word in _WORD.findall(re.sub(r"\S*\.(?:py|md|yml)\b", "", span)):
            if not word.startswith("sidecar_") and word not in words() and word not in foreign():
                yield f"`{word}` is not in the code: it was renamed, or belongs into FOREIGN in docs/facts.py"


def _unknown_families(text: str) -> Iterator[str]:
    """Yield Prometheus families that the daemon does not have; `sidecar_eval_*` names all that begin so."""
    for name, star in re.findall(r"\b(sidecar_[a-z_]+)(\*?)", text):
        if not (any(known.startswith(name) for known in names_of_metrics()) if star else name in words()):
            yield f"there is no metric `{name}{star}`"


def _unknown_commands(text: str) -> Iterator[str]:
    """Yield commands of `sidecar` and targets of `make` that do not exist, and options that a command does not have."""
    for line in [*_SPAN.findall(_FENCE.sub("", text)), *_lines_of_shell(text)]:
        for said in re.findall(r"(?:^|[$;&|(] ?)(?:\S+/)?sidecar ((?:[^|;&)]|\\\n)*)", line):
            yield from _unknown_options(said)
        for target in re.findall(r"(?:^|[$;&] ?)make ([a-z][a-z-]+)\b(?!=)", line):
            if target not in targets():
                yield f"there is no `make {target}`"
        if re.fullmatch(r"--[a-z][a-z-]+", line) and line not in FOREIGN_OPTIONS | every_option():
            yield f"no command has the option `{line}`"


def _unknown_options(said: str) -> Iterator[str]:
    words_ = said.partition("  #")[0].split()
    if not words_ or not re.fullmatch(r"[a-z]+", words_[0]):
        return
    name = " ".join(words_[:2]) if " ".join(words_[:2]) in commands() else words_[0]
    if name not in commands():
        if not any(known.startswith(f"{name} ") for known in commands()):
            yield f"there is no command `sidecar {name}`"
        return
    for option in re.findall(r"(?<=\s)(--[a-z][a-z-]+)", f" {said.partition('  #')[0]}"):
        if option not in commands()[name]:
            yield f"`sidecar {name}` has no option `{option}`"


def _lines_of_shell(text: str) -> Iterator[str]:
    for _, _, language, code in _FENCE.findall(text):
        if language.split()[:1] in (["sh"], ["console"]):
            yield from (line.strip() for line in code.replace("\\\n", " ").splitlines())


def _other_defaults(text: str) -> Iterator[str]:
    """Yield defaults of settings that pages quote otherwise than they are, in prose or in a table of defaults."""
    for name, *amounts in _QUOTED_DEFAULT.findall(text):
        number, unit = next((amounts[i], amounts[i + 1]) for i in (0, 2, 4) if amounts[i])
        yield from _other_default(name, number, unit)
    for name, said in re.findall(r"`(\w+)` \(([^)\s`]+)\)", text):
        default = Settings.model_fields[name].default if name in Settings.model_fields else None
        if isinstance(default, str) and said.replace(EN_DASH, "-") != default:
            yield f"`{name}` is {default} by default, not {said}"
    for table in re.findall(r"^\|[^\n]*\| setting \| default \|\n\|[-|]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE):
        for names, values in re.findall(r"\| ([^|\n]+) \| ([^|\n]+) \|$", table, re.MULTILINE):
            found = re.findall(r"`(\w+)`", names)
            said = re.findall(_AMOUNT, values)
            for index, name in enumerate(found):
                yield from _other_default(name, *said[min(index, len(said) - 1)])


def _other_default(name: str, number: str, unit: str) -> Iterator[str]:
    default = getattr(Settings(checkpoint_dir=Path("ckpts")), name, None)
    if isinstance(default, bool) or not isinstance(default, int | float):
        return
    if float(number.replace(",", "").rstrip(".")) * _UNITS.get(unit, 1) != default:
        yield f"`{name}` is {default} by default, not {number} {unit}".rstrip()


def _other_counts(prose: str) -> Iterator[str]:
    """Yield number words in front of something that is counted, if there are more or fewer of it."""
    numbers = "|".join(NUMBERS[1:])
    for said, noun in re.findall(rf"\b({numbers}|\d+) ({'|'.join(COUNTED)})\b", prose, re.IGNORECASE):
        number = int(said) if said.isdigit() else NUMBERS.index(said.lower())
        if number != (count := COUNTED[noun.lower()]()):
            yield f"there are {count} {noun}, not {said}"


def _other_quotes(quoted: _Quotes, text: str) -> Iterator[str]:
    """Yield sentences that quote a number of the code, and do not stand in the page with this number."""
    flat = " ".join(text.split())
    for sentence, value in quoted.items():
        if (now := sentence.format(value())) not in flat:
            yield f"it should say {now!r}, as the code does"


def _other_lists(listed: _Lists, text: str) -> Iterator[str]:
    """Yield names that a list of a page lacks, or has although the code does not."""
    for (head, column), known in listed.items():
        there = {span.partition("=")[0] for row in _rows_below(head, text) for span in _SPAN.findall(row[column])}
        for name in sorted(known() ^ there):
            yield f"the table {head!r} {'lacks' if name in known() else 'has, and the code has not,'} `{name}`"


def _other_times(text: str) -> Iterator[str]:
    """Yield how long targets of `make` take, in a table, if the Makefile's help says something else."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target, time in re.findall(r"^\| `make ([a-z-]+)[^`|]*` \| ([^|]*\d[^|]*) \|", text, re.MULTILINE):
        said = re.search(r"[\d to]+minutes?", time)
        helped = re.search(rf"^{target}:.*## (.*)$", makefile, re.MULTILINE)
        if said and helped and said[0] not in helped[1].replace("ten minutes", "10 minutes"):
            yield f"`make {target}` takes {said[0]}, and the Makefile says: {helped[1]}"


def _other_labels(text: str) -> Iterator[str]:
    """Yield families whose labels a table of metrics gives otherwise; an ellipsis stands for any others."""
    labels = {each.name: set(each.labels) for each in families()}
    for row in _rows_below("| metric | labels | meaning |", text):
        said = set(row[1].split(", "))
        for name in re.findall(r"`(sidecar_[a-z_]+)`", row[0]):
            if said - {"…"} - labels[name] or ("…" not in said and said != labels[name]):
                yield f"`{name}` has the labels {', '.join(sorted(labels[name]))}"


def _unknown_messages(text: str) -> Iterator[str]:
    """Yield texts in quotation marks, in tables of messages, that nothing says; an ellipsis stands for any others."""
    quoted = (message for head in _MESSAGES for row in _rows_below(head, text) for message in _QUOTE.findall(row[0]))
    for part in (part.strip() for message in quoted for part in message.split("…")):
        words_ = part.split(" ")
        filled_in = (f"{' '.join(words_[:count])} {{" for count in range(1, len(words_)))  # before a value
        if not any(each in said() for each in (part, *filled_in)):
            yield f'no message says "{part}"'


def _rows_below(head: str, text: str) -> list[list[str]]:
    """Return the cells of the rows of the table that begins with a line."""
    lines = [line.strip() for line in text.partition(head)[2].splitlines()][2:]
    end = next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.split(" | ")] for line in lines[:end]]


@functools.cache
def said() -> str:
    """Return the sources of the package, in which each text is in one piece, and the errors of the system."""
    sources = (path.read_text("utf-8") for path in sorted((ROOT / "sidecar").rglob("*.py")))
    texts = (re.sub(r'"\n\s*f?"', "", source) for source in sources)
    return "\n".join([*texts, *(os.strerror(number) for number in errno.errorcode)])


@functools.cache
def foreign() -> frozenset[str]:
    """Return the words of other projects."""
    return frozenset(word for words_ in FOREIGN.values() for word in words_)


@functools.cache
def words() -> frozenset[str]:
    """Return every word in the files of the product, its deployment and its examples."""
    found: set[str] = set()
    for path in _files():
        found |= {*re.findall(r"\w+", path.read_text("utf-8", errors="replace"))}
    return frozenset(found)


def _files() -> Iterator[Path]:
    for folder in ("sidecar", "deploy", "examples", "systemd"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in _READ and "__pycache__" not in path.parts and path.is_file():
                yield path
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml", "docker-compose.yml"))


@functools.cache
def names_of_metrics() -> frozenset[str]:
    """Return the names of all Prometheus families."""
    return frozenset(each.name for each in families())


@functools.cache
def commands() -> dict[str, frozenset[str]]:
    """Return the options of every command, those that are hidden as well."""
    return dict(_commands(typer.main.get_command(cli.app)))


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            yield f"{before}{name}", frozenset({*options, "--help", *FLAGS} - {""})


@functools.cache
def every_option() -> frozenset[str]:
    """Return the options of all commands together."""
    return frozenset().union(*commands().values()) | {"--version"}


@functools.cache
def targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def named(path: Path) -> str:
    """Return the path of a page as the tables of this module name it."""
    return path.relative_to(ROOT).as_posix()
