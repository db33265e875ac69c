"""Show in what two evaluations differ: every number with its interval, and the examples that changed. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.publishing.page.confusion_matrix import matrix_picture
from sidecar.publishing.page.document import Files, frame
from sidecar.publishing.page.markup import cell, exact, head, moment, step, table, text
from sidecar.publishing.page.numbers import plan_link

_VERDICTS: Final[Mapping[str, str]] = {
    "better": '<span class="good">better</span>',
    "worse": '<span class="bad">worse</span>',
}

_NO_ANSWERS: Final = "its saved values do not say which examples are right"


def comparison_page(found: Mapping[str, Any], run: str, files: Files) -> str:
    """Return the page of a comparison, as `/api/comparison` has it, with the `directory` of the checkpoints."""
    new, old = found["new"], found["old"]
    line = shlex.join(["sidecar", "compare", found["directory"], old["checkpoint"], new["checkpoint"], "--csv"])
    heads = (
        *(head("number"), head("of"), head("old", "number"), head("new", "number"), head("difference", "number")),
        *(head("95 % interval"), head("verdict")),
    )
    changed = "".join(_changed(one) for one in found["differences"] if one["fixed_count"] or one["broken_count"])
    body = f"""<main><p><a href="./">Status of the run</a></p><article id="details">
<h1>{text(new["checkpoint"])} compared with {text(old["checkpoint"])}</h1>
<p class="note">{_one("new", new)} · {_one("old", old)}</p>
{table(heads, map(_row, found["differences"]), caption="Differences, new minus old")}
<p class="note">Where the same examples were evaluated, the interval is that of the differences example by example.</p>
<section id="changed"><h2>Examples that changed</h2>{changed or _unchanged(found["differences"])}</section>
{"".join(map(_matrix, found["confusion"]))}
<p class="note">All of them: <code class="path">{text(line)}</code> ·
<a href="api/comparison?new={new["plan"]}&amp;old={old["plan"]}" download="comparison-{new["plan"]}.json">JSON</a></p>
</article></main>"""
    return frame(f"{text(new['checkpoint'])} compared with {text(old['checkpoint'])} · {text(run)}", body, files)


def _one(word: str, row: Mapping[str, Any]) -> str:
    shown = f"step {step(row)}" if step(row) else f"evaluation {text(row['plan'])}"
    return f"{word}: {plan_link(row['plan'], shown)}, finished {moment(row['completed_at'])}"


def _row(one: Mapping[str, Any]) -> str:
    difference = "" if one["difference"] is None else exact(one["difference"], signed=True)
    interval = "" if one["lower"] is None else f"{exact(one['lower'])} to {exact(one['upper'])}"
    if one["rule"] == "none":
        verdict = f"cannot be compared: {text(one['note'])}"
    elif not interval:
        verdict = "noise unknown"
    else:
        verdict = _VERDICTS.get(one["verdict"], "within noise") + (" (paired)" if one["rule"] == "paired" else "")
    return (
        f"<tr><th scope='row'>{text(one['metric'])}</th>{cell(text(one['label']))}"
        f"{_number(one['old'])}{_number(one['new'])}"
        f"{cell(difference, 'number')}{cell(interval)}{cell(verdict)}</tr>"
    )


def _number(of: float | None) -> str:
    return cell("not finite" if of is None else exact(of), "number")


def _matrix(one: Mapping[str, Any]) -> str:
    shown = matrix_picture(one["classes"], one["matrix"], of="changes")
    return f"<h2>Change of the confusion matrix {text(one['set'])}/{text(one['metric'])}</h2>{shown}"


def _unchanged(differences: Sequence[Mapping[str, Any]]) -> str:
    """Return that no example changed; or that this is not known, and why not."""
    whole = [one for one in differences if not one["label"]]
    if known := [one["metric"] for one in whole if one["changes_known"]]:
        return f"<p>No example changed from wrong to right or back: {text(', '.join(known))}.</p>"
    reasons = "".join(f"<li>{text(one['metric'])}: {text(one['note'] or _NO_ANSWERS)}</li>" for one in whole)
    return f"<p>It is not known which examples changed.</p><ul>{reasons}</ul>"


def _changed(one: Mapping[str, Any]) -> str:
    """Return the numbers of the examples that changed, from 0 in the order of the data, with inputs that were saved."""
    items = [
        f"<dt>{one[f'{kind}_count']:,} {kind}</dt><dd>{_examples(one[kind], one['inputs'])}"
        f"{' …' * (one[f'{kind}_count'] > len(one[kind]))}</dd>"
        for kind in ("fixed", "broken")
        if one[f"{kind}_count"]
    ]
    return f"<h3>{text(one['metric'])}</h3><dl>{''.join(items)}</dl>"


def _examples(places: Sequence[int], inputs: Mapping[int, Mapping[str, str]]) -> str:
    """Return numbers of examples; those with an input as a list of figures."""
    figures = "".join(
        f"<li>{_input(place, inputs[place])}<span>{place}</span></li>" for place in places if place in inputs
    )
    rest = ", ".join(str(place) for place in places if place not in inputs)
    return f'<ul class="examples">{figures}</ul>{rest}' if figures else rest


def _input(place: int, of: Mapping[str, str]) -> str:
    if "image" in of:
        return f'<img src="{text(of["image"])}" alt="input of example {place}">'
    return f"<q>{text(of['text'])}</q>"
