"""Check the values of the settings about the status page, as `values` checks the others. Used by `model` alone."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from sidecar.settings.json_table import table_of


def check_page_url(value: str) -> str:
    """Return a URL that a page can link to; raises `ValueError`."""
    parts = urlsplit(value)  # raises a ValueError for brackets that do not match
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isascii() or not value.isprintable():
        raise ValueError("write the URL of a page, such as https://grafana.example.com/d/sidecar-training-run")
    return value


def _are_links(value: Any) -> dict[str, str]:
    remedy = "write a table [page_links] with NAME = URL"
    links = table_of(value, remedy, 'write an object such as {"Grafana": "https://grafana.example.com/"}')
    for name, url in links.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(url, str):
            raise ValueError(f"{name!r}: {remedy}")
        try:
            check_page_url(url)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    return dict(links)


PageUrl = Annotated[str, AfterValidator(check_page_url)]
PageLinks = Annotated[dict[str, str], BeforeValidator(_are_links)]
