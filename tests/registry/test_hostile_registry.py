"""A hostile registry: its answers are limited and validated, and a login is sent to no other server."""

import base64
import gzip
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.images import registry_client
from sparkwright.host.images.registry_client import Registry, RegistryHttp
from sparkwright.host.images.registry_documents import CONFIG_MEDIA_TYPES, INDEX_MEDIA_TYPES, MANIFEST_MEDIA_TYPES
from sparkwright.trust.image_name import ImageReference
from tests.certificate import write_self_signed
from tests.http_servers import QuietHandler

ZERO = "sha256:" + "0" * 64


class ScriptedServer:
    """A web server with scripted answers.

    `answers` maps the beginning of a path to status, headers and body (bytes, or an iterator); `seen` holds paths and logins.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Any] = {}
        self.seen: list[tuple[str, str | None]] = []
        server = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization")
                server.seen.append((self.path, login))
                matching = (answer for path, answer in server.answers.items() if self.path.startswith(path))
                answer: Any = next(matching, (404, {}, b"{}"))
                code, headers, body = answer(login) if callable(answer) else answer
                self.send_response(code)
                for key, value in headers.items():
                    self.send_header(key, value)
                if isinstance(body, bytes):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    for piece in [body] if isinstance(body, bytes) else body:
                        self.wfile.write(piece)
                except OSError:
                    pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def set_answer(self, path: str, code: int = 200, body: Any = b"{}", **headers: str) -> None:
        self.answers[path] = (code, headers, body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    value = ScriptedServer()
    yield value
    value.close()


def test_login_in_an_error_is_redacted(server: ScriptedServer, tmp_path: Path) -> None:
    login = base64.b64encode(b"ops:Tr0ub4dor-3").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {f"127.0.0.1:{server.port}": {"auth": login}}}))

    def deny(given: str | None) -> tuple[int, dict[str, str], bytes]:
        result = {"errors": [{"code": "NO", "message": f"not for {given}, Tr0ub4dor-3"}]}
        challenge = {"WWW-Authenticate": 'Basic realm="x"'}
        return (418, {}, json.dumps(result).encode()) if given else (401, challenge, b"{}")

    server.answers["/v2/a/b"] = deny
    http = RegistryHttp(ImageReference.parse(f"127.0.0.1:{server.port}/a/b:c"), insecure=True)
    with pytest.raises(Failed, match="not for Basic ••••, ••••") as excinfo:
        http.get("manifests/c", accept="*/*", max_bytes=100)
    assert "Tr0ub4dor" not in str(excinfo.value) and login not in str(excinfo.value)


def test_credential_helper_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-slow"
    helper.write_text("#!/bin/sh\nexec sleep 20\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "slow"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(registry_client, "CREDENTIAL_HELPER_TIMEOUT_S", 0.3)
    with pytest.raises(Failed, match="did not finish within 0.3 s"):
        registry_client.find_credentials("ghcr.io")


@pytest.fixture
def other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """Yield another server, https://localhost:PORT, whose certificate is trusted."""
    cert, key = write_self_signed(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    value = ScriptedServer(context)
    yield value
    value.close()


def read_entry(server: ScriptedServer) -> dict[str, Any]:
    name = ImageReference.parse_checked(f"127.0.0.1:{server.port}/a/b:v1")
    return Registry(name, RegistryHttp(name, insecure=True)).entry("linux/amd64")


def encode_document(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def encode_manifest(config: str = ZERO, **fields: Any) -> bytes:
    config_entry = {"digest": config, "size": 10, "mediaType": CONFIG_MEDIA_TYPES[0]}
    defaults = {"mediaType": MANIFEST_MEDIA_TYPES[0], "config": config_entry, "layers": [{"digest": ZERO, "size": 5}]}
    return encode_document(**{**defaults, **fields})


def encode_config(**fields: Any) -> tuple[bytes, str]:
    """Return the config of an image and its digest."""
    config = encode_document(os="linux", architecture="amd64", **fields)
    return config, "sha256:" + hashlib.sha256(config).hexdigest()


def encode_index(rows: int, digest: str = ZERO) -> bytes:
    entries = [{"digest": digest, "size": 1, "platform": {"os": "linux", "architecture": f"a{n}"}} for n in range(rows)]
    return encode_document(mediaType=INDEX_MEDIA_TYPES[0], manifests=entries)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "is not a JSON object"),
        (b'{"manifests":' + b"[" * 100_000, "is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b"{}", "config is missing or of the wrong type"),
        (b" " * (5 * 2**20), "exceeds 4096 KiB"),
        (encode_document(manifests=[1]), r"manifests\[0\] is missing"),
        (encode_document(manifests=[{"digest": ZERO}]), r"manifests\[0\]\.size is missing"),
        (encode_document(manifests=[{"digest": "../../x", "size": 1, "platform": {"os": "linux", "architecture": "amd64"}}]), "a digest in"),
        (encode_index(101), "more than 100 entries"),
        (encode_index(3), "instead of"),
        (encode_document(mediaType="text/html", manifests=[]), "not an image index"),
        (encode_manifest(config="sha256:short"), "the config's digest"),
        (encode_manifest(layers=[{"digest": ZERO, "size": -5}]), "not an image manifest"),
        (encode_manifest(layers=[{"digest": ZERO, "size": 2**60}]), "not an image manifest"),
        (encode_manifest(layers=[{"digest": ZERO, "size": True}]), r"layers\[0\]\.size"),
        (encode_manifest(layers=[{"digest": ZERO, "size": 1}] * 1001), "not an image manifest"),
        (encode_manifest(config=ZERO, mediaType="application/vnd.helm.v1+json"), "not an image manifest"),
    ],
)  # fmt: skip
def test_invalid_document_is_refused(body: bytes, message: str, server: ScriptedServer) -> None:
    server.set_answer("/v2/a/b/manifests/", body=body)
    with pytest.raises(Failed, match=message):
        read_entry(server)


def test_endless_and_compressed_answers_are_refused(server: ScriptedServer) -> None:
    def send_spaces() -> Iterator[bytes]:
        while True:
            yield b" " * 2**16

    server.set_answer("/v2/a/b/manifests/", body=send_spaces())
    with pytest.raises(Failed, match="exceeds 4096 KiB"):
        read_entry(server)
    bomb = gzip.compress(b" " * 2**28)
    server.answers = {"/v2/a/b/manifests/": (200, {"Content-Encoding": "gzip"}, bomb)}
    with pytest.raises(Failed, match="compresses its answer, which was not requested"):
        read_entry(server)
    server.set_answer("/v2/a/b/manifests/", 500, send_spaces())
    with pytest.raises(Failed, match="exceeds 64 KiB"):
        read_entry(server)


def test_content_with_a_wrong_digest_is_refused(server: ScriptedServer) -> None:
    config, digest = encode_config()
    server.set_answer("/v2/a/b/manifests/", body=encode_manifest(digest))
    server.set_answer("/v2/a/b/blobs/", body=config)
    assert read_entry(server)["manifests"][0]["config"] == digest
    server.set_answer("/v2/a/b/blobs/", body=config + b" ")
    with pytest.raises(Failed, match="wrong content"):
        read_entry(server)


def test_labels_with_control_characters_are_dropped(server: ScriptedServer) -> None:
    config, digest = encode_config(created="\x1b]52;c;aGk=\x07", config={"Labels": {"ai.vllm.version": "1\n2"}})
    server.set_answer("/v2/a/b/manifests/", body=encode_manifest(digest))
    server.set_answer("/v2/a/b/blobs/", body=config)
    entry = read_entry(server)
    assert (entry["created"], entry["engine_version"]) == (None, None)


def test_redirects_are_limited_and_need_https(server: ScriptedServer) -> None:
    server.set_answer("/v2/a/b/manifests/", 302, Location="/v2/a/b/manifests/v1")
    with pytest.raises(Failed, match="redirects more than 5 times"):
        read_entry(server)
    for url in (
        "http://127.0.0.1:9/x",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "https:///x",
        "ftp://a/b",
    ):
        server.set_answer("/v2/a/b/manifests/", 307, Location=url)
        with pytest.raises(Failed, match="not https"):
            read_entry(server)


def test_redirected_blob_is_requested_without_the_login(
    server: ScriptedServer, other_server: ScriptedServer, tmp_path: Path
) -> None:
    write_login(server, tmp_path)
    config, digest = encode_config()
    challenge = (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    server.answers["/v2/a/b/manifests/"] = lambda login: (200, {}, encode_manifest(digest)) if login else challenge
    server.set_answer("/v2/a/b/blobs/", 307, Location=f"https://localhost:{other_server.port}/blob")
    other_server.set_answer("/blob", body=config)
    assert read_entry(server)["digest"]
    assert any(login for path, login in server.seen if "/blobs/" in path)
    assert set(other_server.seen) == {("/blob", None)}


def test_realm_of_another_domain_receives_no_login(
    server: ScriptedServer, other_server: ScriptedServer, tmp_path: Path
) -> None:
    write_login(server, tmp_path)
    realm = f'Bearer realm="https://localhost:{other_server.port}/token",service="x"'
    server.answers["/v2/a/b/"] = (401, {"WWW-Authenticate": realm}, b"")
    other_server.set_answer("/token", 401)
    with pytest.raises(Failed, match=r"a different domain\. It was not sent"):
        read_entry(server)
    assert [login for _, login in other_server.seen] == [None]
    server.answers["/v2/a/b/"] = (401, {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:9/token"'}, b"")
    with pytest.raises(Failed, match="not https"):
        read_entry(server)


def test_realm_of_the_registry_receives_the_login(server: ScriptedServer, tmp_path: Path) -> None:
    write_login(server, tmp_path)
    realm = f'Bearer realm="http://127.0.0.1:{server.port}/token",service="x"'
    refused = (401, {"WWW-Authenticate": realm}, b"")
    accepted: Any = (200, {}, encode_index(0))
    server.answers["/v2/a/b/manifests/"] = lambda login: accepted if login == "Bearer abc" else refused
    server.set_answer("/token", body=encode_document(token="abc"))
    assert read_entry(server)["platforms"] == []
    assert next(login for path, login in server.seen if path.startswith("/token")) == _basic_header()
    for body in (encode_document(token="a\r\nX-Evil: 1"), encode_document(token=1), b"{}", b"[" * 60_000, b" " * 2**17):
        server.set_answer("/token", body=body)
        with pytest.raises(Failed):
            read_entry(server)


@pytest.mark.parametrize(
    ("registry", "realm", "is_same"),
    [
        ("registry-1.docker.io", "auth.docker.io", True),
        ("registry.gitlab.com", "gitlab.com", True),
        ("registry.lab.example.org", "gitlab.lab.example.org", True),
        ("nvcr.io", "nvcr.io", True),
        ("quay.io", "auth.quay.io", True),
        ("nvcr.io", "evil.io", False),
        ("registry-1.docker.io", "evil-docker.io", False),
        ("mine.co.uk", "evil.co.uk", False),
        ("registry.lan", "evil.lan", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("127.0.0.1", "localhost", False),
    ],
)
def test_realm_of_the_same_owner_is_recognized(registry: str, realm: str, is_same: bool) -> None:
    assert registry_client.is_same_owner(registry, realm) is is_same


def write_login(server: ScriptedServer, folder: Path) -> None:
    auths = {f"127.0.0.1:{server.port}": {"auth": base64.b64encode(b"me:hunter2").decode()}}
    (folder / "config.json").write_text(json.dumps({"auths": auths}))


def _basic_header() -> str:
    return "Basic " + base64.b64encode(b"me:hunter2").decode()
