"""TLS, client certificates, passwords and headers of the HTTP port, by a file that Prometheus' exporters read, too."""

import base64
import contextlib
import http.client
import re
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

import bcrypt
import pytest
from publishing.http.conftest import Daemon, answer, connect, started

from sidecar import notify
from sidecar.commands.port_owner import UNNAMED, node_serving
from sidecar.errors import SettingsError
from sidecar.publishing.http.access import Access, AccessFile, read_access
from sidecar.settings import Settings

SECRET = "pässword"
HASH = bcrypt.hashpw(SECRET.encode(), b"$2b$04$abcdefghijklmnopqrstuu").decode()
USERS = f"basic_auth_users:\n  ann: {HASH}\n"
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
ASKED = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=240)


def make_certificate(folder, name, authority=None, san="IP:127.0.0.1"):
    """Write NAME.key and NAME.crt, signed by another one, or by itself."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-days", "2")
    signed = () if authority is None else ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key")
    # Python 3.13 asks for the usage of keys.
    kind = ("CA:TRUE", "keyCertSign") if authority is None else ("CA:FALSE", "digitalSignature")
    stated = (f"subjectAltName={san}", f"basicConstraints=critical,{kind[0]}", f"keyUsage=critical,{kind[1]}")
    extensions = [word for each in stated for word in ("-addext", each)]
    openssl(folder, "req", "-x509", *key, "-subj", f"/CN={name}", *signed, *extensions, "-out", f"{name}.crt")


@pytest.fixture
def folder(tmp_path, made_once, needs):
    """Return a folder with certificates that a test may change."""
    needs("openssl")

    def make(common):
        for name in ("ca", "stranger"):
            make_certificate(common, name)
        make_certificate(common, "server", "ca")
        make_certificate(common, "client", "ca", "DNS:prometheus.example.com")
        make_certificate(common, "other", "stranger")

    for path in made_once("certificates", make).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture
def serve(folder):
    """Serve by a text of the file; the server ends with the test."""
    with contextlib.ExitStack() as servers:

        def start(text, *, reread_seconds=0.05, **settings):
            (folder / "web.config.yml").write_text(text)
            file = AccessFile(folder / "web.config.yml", reread_seconds)
            return servers.enter_context(started(Daemon().serve(access=file, **settings)))

        yield start


def trusting(folder, *, client=None, newest=ssl.TLSVersion.TLSv1_3):
    """Return what a client trusts and shows."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.maximum_version = newest
    if client is not None:
        context.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
    return context


def get(server, path="/api/status", *, context=None, login=None, **headers):
    """Return status, headers and body of an answer."""
    host, port = server.url.partition("://")[2].split(":")
    if context is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    if login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return found.status, found.headers, found.read()


def refused(server, **client):
    """Return whether a client gets no answer."""
    try:
        get(server, **client)
    except (OSError, http.client.HTTPException):
        return True
    return False


@pytest.mark.parametrize(
    ("text", "node"),
    [
        pytest.param("{}", "worker-0", id="plain HTTP"),
        pytest.param(TLS, "worker-0", id="TLS"),
        pytest.param(TLS + USERS, UNNAMED, id="TLS and passwords"),
        pytest.param(USERS, UNNAMED, id="passwords"),
        pytest.param(ASKED, UNNAMED, id="client certificates"),
    ],
)
def test_a_command_knows_the_daemon_that_has_its_port(serve, folder, text, node):
    """Also by TLS; a daemon that asks for more than that is a daemon all the same."""
    server = serve(text)
    http = server.url.partition("://")[2]
    own = Settings(checkpoint_dir=folder, run="mnist", http=http, http_access=folder / "web.config.yml")
    assert node_serving(own) == node
    if node is not UNNAMED:
        assert node_serving(own.model_copy(update={"run": "another"})) is None


def test_a_file_without_keys_changes_nothing(serve):
    """Plain HTTP for everybody is what it says."""
    server = serve("{}")
    assert server.url.startswith("http://")
    assert get(server)[0] == 200


def test_answers_are_encrypted(serve, folder):
    """A client that trusts the authority gets whole answers, also long ones; plain HTTP gets none."""
    server = serve(TLS)
    assert server.url.startswith("https://")
    status, _, body = get(server, "/", context=trusting(folder))
    assert status == 200
    assert body.endswith(b"</html>\n")
    with pytest.raises((OSError, http.client.HTTPException)):
        get(server, "/healthz")
    assert get(server, "/healthz", context=trusting(folder))[2] == b"ok\n"


def test_old_versions_of_tls_are_refused(serve, folder):
    """TLS 1.2 is the oldest, and `min_version` may ask for more."""
    assert get(serve(TLS), context=trusting(folder, newest=ssl.TLSVersion.TLSv1_2))[0] == 200
    newer = serve(TLS + "  min_version: TLS13\n")
    assert refused(newer, context=trusting(folder, newest=ssl.TLSVersion.TLSv1_2))
    assert get(newer, context=trusting(folder))[0] == 200


def test_a_client_without_a_certificate_of_the_authority_is_refused(serve, folder):
    """Neither no certificate nor one of a stranger is enough, also for the probes."""
    server = serve(ASKED)
    assert get(server, context=trusting(folder, client="client"))[0] == 200
    for client in (None, "other"):
        assert refused(server, context=trusting(folder, client=client), path="/healthz")


def test_a_certificate_may_have_to_carry_a_name(serve, folder):
    """Another certificate of the same authority is refused."""
    allowed = "  client_allowed_sans: [prometheus.example.com]\n"
    assert get(serve(ASKED + allowed), context=trusting(folder, client="client"))[0] == 200
    assert refused(serve(ASKED + allowed), context=trusting(folder, client="server"))
    optional = ASKED.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
    assert get(serve(optional), context=trusting(folder))[0] == 200


def test_without_the_password_nothing_but_the_probes_is_answered(serve):
    """A wrong password, another user's name and another kind of login are refused as no login is."""
    server = serve(USERS)
    status, headers, body = get(server)
    assert (status, headers["WWW-Authenticate"].split()[0]) == (401, "Basic")
    assert b"mnist" not in body
    assert get(server, login=f"ann:{SECRET}")[0] == 200
    assert get(server, login=f"ann:{SECRET}")[0] == 200  # known by now
    for login in ("ann:", "ann:password", f"bob:{SECRET}", SECRET, "ann:" + "x" * 100, f"ann:{SECRET}x"):
        assert get(server, login=login)[0] == 401, login
    for header in ("Bearer abc", "Basic", "Basic !", "Basic /w==", "Basic ü", f"Digest {SECRET.encode().hex()}"):
        assert get(server, Authorization=header)[0] == 401, header
    for path in ("/metrics", "/", "/static/page.js", "/nowhere", "/notify"):
        assert get(server, path)[0] == 401
    for path in ("/healthz", "/readyz"):
        assert get(server, path)[0] == 200


def test_a_notice_needs_the_password_as_everything_does(serve):
    """The user and the password are in the URL, which no log shows with them."""
    noticed = []
    server = serve(USERS, notice=noticed.append)
    host = server.url.removeprefix("http://")
    assert notify("/ckpts/1", f"http://ann:{quote(SECRET)}@{host}")
    for login in ("", "ann@", "ann:wrong@", f"bob:{quote(SECRET)}@"):
        assert not notify("/ckpts/2", f"http://{login}{host}")
    assert noticed == ["/ckpts/1"]


def test_wrong_passwords_keep_nobody_from_the_port(serve):
    """They are compared one after the other, and meanwhile probes and those who were let in are answered at once."""
    slow = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(10)).decode()
    server = serve(USERS + f"  bob: {slow}\n")
    assert get(server, login=f"ann:{SECRET}")[0] == 200

    def guess(number):
        with contextlib.suppress(OSError):  # a busy machine may take too long
            get(server, login=f"bob:{number}")

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert get(server, "/healthz")[0] == 200
        assert get(server, login=f"ann:{SECRET}")[0] == 200
    waiting = any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert waiting


def test_headers_replace_the_usual_ones(serve):
    """Those of the file come with every answer, also with a refusal."""
    server = serve(
        USERS + "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    "
        "Content-Security-Policy: default-src 'none'\n"
    )
    for login in (None, f"ann:{SECRET}"):
        headers = get(server, login=login)[1]
        assert headers["X-Frame-Options"] == "deny"
        assert headers.get_all("Content-Security-Policy") == ["default-src 'none'"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def eventually(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def serial(server, folder):
    host, port = server.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusting(folder).wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.getpeercert()["serialNumber"]


def test_a_renewed_certificate_is_used_without_a_restart(serve, folder):
    """Nothing but its content tells: a secret of Kubernetes may keep times and sizes."""
    server = serve(TLS)
    before = serial(server, folder)
    make_certificate(folder, "server", "ca")
    eventually(lambda: serial(server, folder) != before)


def test_a_file_that_is_broken_later_changes_nothing(serve, folder, capsys):
    """The access before stays in force until the file can be read again."""
    server = serve(USERS)
    (folder / "web.config.yml").write_text("basic_auth_users: {ann: hunter2}\n")
    eventually(lambda: "http_access_failed" in capsys.readouterr().out)
    assert get(server)[0] == 401
    assert get(server, login=f"ann:{SECRET}")[0] == 200
    (folder / "web.config.yml").write_text(USERS.replace("ann", "bob"))
    eventually(lambda: get(server, login=f"bob:{SECRET}")[0] == 200)
    assert get(server, login=f"ann:{SECRET}")[0] == 401


def test_a_file_that_is_being_written_is_not_read_yet(folder):
    """The first half of a file may ask for less than the whole."""
    path = folder / "web.config.yml"
    path.write_text(USERS)
    file = AccessFile(path)
    before = file.access
    path.write_text("{}\n")  # a prefix of what comes
    file.reread()
    path.write_text("{}\n" + "# more\n")
    file.reread()
    assert file.access is before
    file.reread()
    assert not file.access.users


def test_a_client_that_does_not_shake_hands_is_dropped(serve, folder):
    """Silence, garbage and half a handshake end with the time for the request; others are served meanwhile."""
    server = serve(TLS, request_seconds=0.5)
    address = server.url.removeprefix("https://").split(":")
    with contextlib.ExitStack() as clients:
        silent, garbage, half = (
            clients.enter_context(socket.create_connection((address[0], int(address[1])), timeout=60)) for _ in range(3)
        )
        garbage.sendall(b"\x16\x03\x01\xff\xff" + bytes(4096))
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        assert get(server, "/healthz", context=trusting(folder))[0] == 200
        for client in (silent, half):
            assert answer(client) == b""
        answer(garbage)
    assert get(server, "/healthz", context=trusting(folder))[0] == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls_server_config:\n  cert_file: server.crt\n", ["tls_server_config.key_file", "required"]),
        (TLS.replace("server.key", "missing.key"), ["key_file", "missing.key", "No such file"]),
        (TLS.replace("server.key", "other.key"), ["server.crt", "other.key"]),
        (TLS.replace("server.crt", "server.key"), ["server.key", "PEM"]),
        (TLS + "  min_version: TLS10\n", ["tls_server_config.min_version", "TLS12"]),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", ["client_auth_type", "RequireAndVerifyClientCert"]),
        (TLS + "  client_ca_file: ca.crt\n", ["tls_server_config", "client_auth_type"]),
        (TLS + "  client_allowed_sans: [a]\n", ["tls_server_config", "client_allowed_sans"]),
        (TLS + "  cipher_suites: [a]\n", ["tls_server_config.cipher_suites", "no such key"]),
        ("basic_auth_users:\n  ann: hunter2\n", ["basic_auth_users.ann", "htpasswd"]),
        (USERS.replace("$04$", "$31$"), ["basic_auth_users.ann", "4 to 14"]),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', ["X-Frame-Options", "ASCII"]),
        ("http_server_config: {headers: {Server: a}}", ["headers.Server"]),
        ("rate_limit: {}\n", ["rate_limit", "no such key"]),
        ("- a\n", ["the file", "basic_auth_users"]),
        ("", ["the file", "basic_auth_users"]),
        ("a: [\n", ["line 2", "YAML"]),
        ("a: \x00\n", ["YAML"]),
        ("#" * 1024 * 1024 + "\n", ["1048576 bytes"]),
    ],
)
def test_a_mistake_is_named_before_anything_is_served(folder, text, said):
    """File, key and what to write; a secret in the file is not repeated."""
    path = folder / "web.config.yml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_access(path)
    for part in (str(path), *said):
        assert part in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_key_with_a_password_is_refused_without_a_question(folder):
    """Nobody sits at the terminal of a daemon."""
    openssl(folder, "pkey", "-in", "server.key", "-aes256", "-passout", "pass:x", "-out", "closed.key")
    (folder / "web.config.yml").write_text(TLS.replace("server.key", "closed.key"))
    with pytest.raises(SettingsError, match=r"closed\.key"):
        read_access(folder / "web.config.yml")


def test_a_file_that_is_missing_is_named(tmp_path):
    """A typo must not open the port to everybody."""
    with pytest.raises(SettingsError, match=r"none\.yml: No such file"):
        AccessFile(tmp_path / "none.yml")


def test_logins_that_are_remembered_are_bounded():
    """A client cannot fill the memory with spellings of one login."""
    access = Access(users={"ann": HASH.encode()})
    for spaces in range(300):
        header = "Basic" + " " * (spaces + 1) + base64.b64encode(f"ann:{SECRET}".encode()).decode()
        assert access.admits(header)
    assert len(access.known) <= 256


def test_without_a_file_the_port_is_as_it_was():
    """No thread waits for changes, and nobody is asked for anything."""
    with started(Daemon().serve()) as server, connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert answer(client).endswith(b"ok\n")


def test_the_file_of_the_page_is_one_of_prometheus_too(folder, needs):
    """Prometheus' own tool accepts the page's file, and so does the daemon."""
    page = (Path(__file__).parents[3] / "docs/how-to/firewall.md").read_text()
    (code,) = re.findall(r"<!-- web\.config\.yml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    path = folder / "web.config.yml"
    path.write_text(code)
    for name, shown in (("server.crt", "node.crt"), ("server.key", "node.key"), ("ca.crt", "clients.crt")):
        (folder / name).rename(folder / shown)
    access = read_access(path)
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert access.admits("Basic " + base64.b64encode(b"prometheus:test").decode())
    done = subprocess.run(
        [needs("promtool"), "check", "web-config", path], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
