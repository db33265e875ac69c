"""Read TLS, certificates and passwords of the HTTP port from a file in the format of Prometheus' `web.config.yml`.

The server asks `AccessFile` for each connection. A thread reads the file and the files that it names again when one of
them has changed; an `Access` that cannot be read leaves the one before in force. The keys are those of
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md that Python's TLS has, too.
"""

import base64
import contextlib
import hashlib
import re
import secrets
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from sidecar.errors import SettingsError
from sidecar.publishing.plain_structlog import structlog
from sidecar.system.plain_text import one_line

_log = structlog.get_logger()

_INSTALL: Final = "pip install bcrypt PyYAML"
_MOST_BYTES: Final = 1024 * 1024
_REREAD_SECONDS: Final = 5.0
_MOST_KNOWN: Final = 256  # logins whose password was compared and is not compared again
_LONGEST_PASSWORD: Final = 72  # bytes that bcrypt looks at
_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}")
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFIED: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_Header = Literal[
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
]
_Version = Literal["TLS12", "TLS13"]


def _is_hash(value: str) -> str:
    if not _HASH.fullmatch(value):
        raise ValueError("write a bcrypt hash with a cost of 4 to 14, such as `htpasswd -nBC 10 '' | tr -d ':'` prints")
    return value


def _is_header(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError("write printable ASCII characters in one line")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TlsServer(_Section):
    cert_file: Path
    key_file: Path
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    client_allowed_sans: tuple[str, ...] = ()
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> "_TlsServer":
        asks = self.client_auth_type != "NoClientCert"
        if asks != (self.client_ca_file is not None):
            raise ValueError("client_ca_file and a client_auth_type such as RequireAndVerifyClientCert need each other")
        if self.client_allowed_sans and not asks:
            raise ValueError("client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
        return self


class _HttpServer(_Section):
    http2: bool = True  # an offer only: this server speaks HTTP/1.1
    headers: dict[_Header, Annotated[str, AfterValidator(_is_header)]] = {}


class _WebConfig(_Section):
    tls_server_config: _TlsServer | None = None
    http_server_config: _HttpServer = _HttpServer()
    basic_auth_users: dict[str, Annotated[str, AfterValidator(_is_hash)]] = {}


@dataclass(frozen=True, slots=True)
class Access:
    """Hold who may use the port. Without TLS, users and headers, everybody who reaches it may."""

    tls: ssl.SSLContext | None = None
    names: frozenset[str] = frozenset()  # of which the client's certificate must have one; empty: any certificate
    users: Mapping[str, bytes] = field(default_factory=dict)  # by name: the bcrypt hash of the password
    headers: Mapping[str, str] = field(default_factory=dict)  # of every answer, in the place of the usual ones
    files: tuple[Path, ...] = ()  # what was read
    known: set[bytes] = field(default_factory=set)  # digests of logins that were right
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    @property
    def scheme(self) -> str:
        """Return the scheme of the port's URLs."""
        return "http" if self.tls is None else "https"

    def knows(self, authorization: str) -> bool:
        """Return whether no password is needed, or this header was right before. This takes no time."""
        return not self.users or self._mark(authorization) in self.known

    def admits(self, authorization: str) -> bool:
        """Return whether a header `Authorization` has a user and their password. This takes 50 ms at a cost of 10."""
        import bcrypt  # noqa: PLC0415 - an extra

        kind, _, encoded = authorization.partition(" ")
        try:
            user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:  # not ASCII, not base64, or not UTF-8
            return False
        given = password.encode()
        if kind.lower() != "basic" or len(given) > _LONGEST_PASSWORD:
            return False
        stored = self.users.get(user)  # another user's hash takes as long, so that the time does not tell who exists
        right = bcrypt.checkpw(given, stored or next(iter(self.users.values()))) and stored is not None
        if right:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            self.known.add(self._mark(authorization))
        return right

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client with this certificate, as `getpeercert` returns it, may use the port."""
        if not self.names or not certificate:  # TLS itself has refused the lack of one, if one is required
            return True
        return not self.names.isdisjoint(name for _, name in certificate.get("subjectAltName", ()))

    def _mark(self, authorization: str) -> bytes:
        return hashlib.sha256(self._salt + authorization.encode(errors="replace")).digest()


def read_access(path: Path) -> Access:
    """Return the access that a file gives. Raises `SettingsError` that names file, key and value."""
    config = _parse(path)
    headers = {str(name): value for name, value in config.http_server_config.headers.items()}
    users = {name: stored.encode() for name, stored in config.basic_auth_users.items()}
    if users and find_spec("bcrypt") is None:
        raise SettingsError(f"http_access {path}: basic_auth_users: bcrypt is not installed: {_INSTALL}")
    if (tls := config.tls_server_config) is None:
        return Access(users=users, headers=headers, files=(path,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.set_alpn_protocols(["http/1.1"])
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "client_ca_file": tls.client_ca_file}
    at = {key: path.parent / file for key, file in files.items() if file is not None}
    for key, file in at.items():
        try:
            _read(file)
        except OSError as error:
            raise SettingsError(f"http_access {path}: tls_server_config: {key} {file}: {error.strerror}") from error
    try:
        context.load_cert_chain(at["cert_file"], at["key_file"], password=lambda: "")  # never ask at the terminal
        if "client_ca_file" in at:
            context.load_verify_locations(at["client_ca_file"])
    except (ssl.SSLError, OSError) as error:
        names = ", ".join(str(file) for file in at.values())
        raise SettingsError(
            f"http_access {path}: tls_server_config: {names}: {one_line(str(error))}; write PEM files, a key without "
            "a password, and the certificate of this key"
        ) from error
    context.verify_mode = _VERIFIED[tls.client_auth_type]
    return Access(context, frozenset(tls.client_allowed_sans), users, headers, (path, *at.values()))


def _parse(path: Path) -> _WebConfig:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(f"http_access {path}: PyYAML is not installed: {_INSTALL}") from error
    try:
        content = yaml.safe_load(_read(path))
        return _WebConfig.model_validate(content)
    except OSError as error:
        raise SettingsError(f"http_access {path}: {error.strerror}; name a file that this user can read") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            reason = "write tls_server_config, basic_auth_users or http_server_config"
        if first["type"] == "extra_forbidden":
            reason = "there is no such key here; docs/how-to/firewall.md lists them"
        raise SettingsError(f"http_access {path}: {key}: {one_line(reason)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", line {line + 1}"
        raise SettingsError(
            f"http_access {path}{where}: not YAML: {getattr(error, 'problem', None) or error}"
        ) from error


def _read(path: Path) -> bytes:
    """Return a file's content. Raises `OSError`, also for a file that is too large."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"more than {_MOST_BYTES} bytes")
    return content


class AccessFile:
    """Hold the access that a file gives, and read it again when it changes; without a file nothing is asked.

    Raises `SettingsError` when it is made, if the file cannot be used.
    """

    def __init__(self, path: Path | None, reread_seconds: float = _REREAD_SECONDS) -> None:
        self._path, self._reread_seconds = path, reread_seconds
        self.access = Access() if path is None else read_access(path)
        self._seen = self._changing = self._state()

    def keep_current(self, closed: threading.Event) -> None:
        """Read the files again whenever they have changed, until `closed`. Call this in a thread of its own."""
        while self._path is not None and not closed.wait(self._reread_seconds):
            self.reread()

    def reread(self) -> None:
        """Read the files again if they have changed, and not since the last call: half a file may ask for no password.

        After an error the access before stays in force.
        """
        state, before = self._state(), self._changing
        self._changing = state
        if self._path is None or state == self._seen or state != before:
            return
        self._seen = state
        try:
            self.access = read_access(self._path)
        except SettingsError as error:
            _log.warning("http_access_failed", message=str(error), remedy="what was read before stays in force")
        else:
            _log.info("http_access_read", file=str(self._path))

    def _state(self) -> bytes:
        """Return a digest of the files' contents: a renewed certificate may have the old time and size."""
        found = hashlib.sha256()
        for path in self.access.files:
            with contextlib.suppress(OSError):
                found.update(hashlib.sha256(_read(path)).digest())
        return found.digest()
