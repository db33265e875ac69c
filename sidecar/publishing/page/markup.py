"""Write values as HTML. Every text from outside is escaped here, and nowhere else. Pure."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote, urlsplit

from sidecar.protocol.records import shown_step
from sidecar.system.plain_text import number, one_line, printable


def text(value: Any) -> str:
    """Return a value as text on one line: markup, control characters and changes of direction have no effect."""
    return "" if value is None else escape(one_line(str(value)))


def quoted(name: str) -> str:
    """Return a name as a part of an address."""
    return quote(name, safe="", errors="surrogatepass")


def lines(value: Any) -> str:
    """Return a text that may have several lines."""
    return "" if value is None else escape(printable(str(value).replace("\r\n", "\n")))


def advice(sentence: str) -> str:
    """Return our own sentence, with what is between backquotes as code."""
    parts = [escape(part) for part in sentence.split("`")]
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def link(url: Any, name: Any) -> str:
    """Return a name, as a link if the URL is one that leads to a page: other nodes may write what they like."""
    try:
        leads = urlsplit(str(url)).scheme in ("http", "https")
    except ValueError:  # brackets that do not match
        leads = False
    return f'<a href="{text(url)}" rel="noreferrer">{text(name)}</a>' if leads else text(name)


def table(heads: Iterable[str], rows: Iterable[str], *, caption: str, part: str = "", style: str = "") -> str:
    """Return a table. Heads and rows are markup; the caption is for readers that do not see the page."""
    head = "".join(heads)
    known, styled = f' id="{part}"' if part else "", f' class="{style}"' if style else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{styled}><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody{known}>{''.join(rows)}</tbody></table></div>"
    )


def head(name: str, style: str = "") -> str:
    """Return the head of a column."""
    return f"<th{_class(style)} scope='col'>{text(name)}</th>"


def cell(content: str, style: str = "") -> str:
    """Return a cell with markup in it."""
    return f"<td{_class(style)}>{content}</td>"


def value(json: Mapping[str, Any] | None) -> str:
    """Return a number of the status document: five digits to read, and all of its bits in `value` and the tooltip."""
    if json is None:
        return ""
    given = json["hex"] if json["value"] is None else json["value"]
    return f'<data value="{text(json["hex"])}" title="{text(given)} = {text(json["hex"])}">{text(number(given))}</data>'


def bounds(json: Mapping[str, Any] | None) -> str:
    """Return the 95 % interval of a number; nothing if it has none."""
    if json is None or json.get("lower") is None or json.get("upper") is None:
        return ""
    lower, upper = (value({"value": end, "hex": float(end).hex()}) for end in (json["lower"], json["upper"]))
    return f'<span class="interval">{lower} to {upper}</span>'


def exact(of: float, *, signed: bool = False, digits: int = 5) -> str:
    """Return a number that was calculated: some digits to read, with a plus if `signed`, and all of them in `value`."""
    return f'<data value="{of!r}">{"+" * (signed and of > 0)}{of:.{digits}g}</data>'


def moment(timestamp: Any, *, since: bool = False) -> str:
    """Return a time of a record. A script shows how long ago it is, or with `since` how long it has lasted."""
    if not timestamp:
        return ""
    shown = f"{str(timestamp)[:16].replace('T', ' ')} UTC"
    lasting = " data-since" if since else ""
    return f'<time datetime="{text(timestamp)}"{lasting} title="{text(timestamp)}">{text(shown)}</time>'


def step(row: Mapping[str, Any]) -> str:
    """Return the step of a row: `500`, or `#3` for the third checkpoint without a step."""
    return text(shown_step(row.get("step"), row.get("step_source")))


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
