"""A registry with arbitrary answers: every answer is limited, and a login goes nowhere else."""

import base64
import gzip
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.images import registry_client
from sparkwright.host.images.registry_client import Registry, RegistryHttp
from sparkwright.host.images.registry_documents import CONFIGS, INDEXES, MANIFESTS
from sparkwright.trust.image_name import ImageReference
from tests.certificate import write_self_signed

ZERO = "sha256:" + "0" * 64


class ScriptedServer:
    """A web server with arbitrary answers.

    `answers` maps the beginning of a path to status, headers, body (bytes, or endless pieces); `seen` holds path and login.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Any] = {}
        self.seen: list[tuple[str, str | None]] = []
        liar = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization")
                liar.seen.append((self.path, login))
                answer = next(
                    (liar.answers[key] for key in liar.answers if self.path.startswith(key)), (404, {}, b"{}")
                )
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

            def log_message(self, *args: Any) -> None:
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


def test_a_registry_that_repeats_the_login_is_not_quoted_with_it(server: ScriptedServer, tmp_path: Path) -> None:
    login = base64.b64encode(b"ops:Tr0ub4dor-3").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {f"127.0.0.1:{server.port}": {"auth": login}}}))

    def denies(given: str | None) -> tuple[int, dict[str, str], bytes]:
        result = {"errors": [{"code": "NO", "message": f"not for {given}, Tr0ub4dor-3"}]}
        challenge = {"WWW-Authenticate": 'Basic realm="x"'}
        return (418, {}, json.dumps(result).encode()) if given else (401, challenge, b"{}")

    server.answers["/v2/a/b"] = denies
    http = RegistryHttp(ImageReference.parse(f"127.0.0.1:{server.port}/a/b:c"), insecure=True)
    with pytest.raises(Failed, match="not for Basic ••••, ••••") as excinfo:
        http.get("manifests/c", accept="*/*", max_bytes=100)
    assert "Tr0ub4dor" not in str(excinfo.value) and login not in str(excinfo.value)


def test_a_credential_helper_that_asks_somebody_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-asks"
    helper.write_text("#!/bin/sh\nexec sleep 20\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "asks"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(registry_client, "CREDENTIAL_HELPER_S", 0.3)
    with pytest.raises(Failed, match="did not finish within 0.3 s"):
        registry_client.find_credentials("ghcr.io")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """Yield another host, with a certificate that is trusted here: https://localhost:PORT."""
    cert, key = write_self_signed(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    value = ScriptedServer(context)
    yield value
    value.close()


def make_registry(liar: ScriptedServer) -> Registry:
    name = ImageReference.parse_checked(f"127.0.0.1:{liar.port}/a/b:v1")
    return Registry(name, RegistryHttp(name, insecure=True))


def encode_document(**parts: Any) -> bytes:
    return json.dumps(parts).encode()


def encode_manifest(config: str = ZERO, **more: Any) -> bytes:
    config_entry = {"digest": config, "size": 10, "mediaType": CONFIGS[0]}
    return encode_document(
        **{"mediaType": MANIFESTS[0], "config": config_entry, "layers": [{"digest": ZERO, "size": 5}], **more}
    )


def encode_index(rows: int, digest: str = ZERO) -> bytes:
    entries = [{"digest": digest, "size": 1, "platform": {"os": "linux", "architecture": f"a{n}"}} for n in range(rows)]
    return encode_document(mediaType=INDEXES[0], manifests=entries)


@pytest.mark.parametrize(
    ("body", "result"),
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
def test_a_document_that_is_none_is_a_sentence(body: bytes, result: str, server: ScriptedServer) -> None:
    server.set_answer("/v2/a/b/manifests/", body=body)
    with pytest.raises(Failed, match=result):
        make_registry(server).entry("linux/amd64")


def test_an_answer_without_end_and_a_packed_one_are_cut_off(server: ScriptedServer) -> None:
    def without_end() -> Iterator[bytes]:
        while True:
            yield b" " * 2**16

    server.set_answer("/v2/a/b/manifests/", body=without_end())
    with pytest.raises(Failed, match="exceeds 4096 KiB"):
        make_registry(server).entry("linux/amd64")
    bomb = gzip.compress(b" " * 2**28)
    server.answers = {"/v2/a/b/manifests/": (200, {"Content-Encoding": "gzip"}, bomb)}
    with pytest.raises(Failed, match="compresses its answer, which was not requested"):
        make_registry(server).entry("linux/amd64")
    server.set_answer("/v2/a/b/manifests/", 500, without_end())
    with pytest.raises(Failed, match="exceeds 64 KiB"):
        make_registry(server).entry("linux/amd64")


def test_other_bytes_than_the_digest_says_are_refused(server: ScriptedServer) -> None:
    config = encode_document(os="linux", architecture="amd64")
    digest = "sha256:" + hashlib.sha256(config).hexdigest()
    server.set_answer("/v2/a/b/manifests/", body=encode_manifest(digest))
    server.set_answer("/v2/a/b/blobs/", body=config)
    assert make_registry(server).entry("linux/amd64")["manifests"][0]["config"] == digest
    server.set_answer("/v2/a/b/blobs/", body=config + b" ")
    with pytest.raises(Failed, match="wrong content"):
        make_registry(server).entry("linux/amd64")


def test_what_an_image_says_of_itself_is_text_that_can_be_shown(server: ScriptedServer) -> None:
    config = encode_document(
        os="linux", architecture="amd64", created="\x1b]52;c;aGk=\x07", config={"Labels": {"ai.vllm.version": "1\n2"}}
    )
    digest = "sha256:" + hashlib.sha256(config).hexdigest()
    server.set_answer("/v2/a/b/manifests/", body=encode_manifest(digest))
    server.set_answer("/v2/a/b/blobs/", body=config)
    entry = make_registry(server).entry("linux/amd64")
    assert (entry["created"], entry["engine_version"]) == (None, None)


def test_redirects_end_and_never_leave_https(server: ScriptedServer) -> None:
    server.set_answer("/v2/a/b/manifests/", 302, Location="/v2/a/b/manifests/v1")
    with pytest.raises(Failed, match="redirects more than 5 times"):
        make_registry(server).entry("linux/amd64")
    for url in (
        "http://127.0.0.1:9/x",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "https:///x",
        "ftp://a/b",
    ):
        server.set_answer("/v2/a/b/manifests/", 307, Location=url)
        with pytest.raises(Failed, match="not https"):
            make_registry(server).entry("linux/amd64")


def test_the_login_stays_with_the_registry_when_a_blob_is_elsewhere(
    server: ScriptedServer, elsewhere: ScriptedServer, tmp_path: Path
) -> None:
    write_login(server, tmp_path)
    config = encode_document(os="linux", architecture="amd64")
    digest = "sha256:" + hashlib.sha256(config).hexdigest()
    challenge = (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    server.answers["/v2/a/b/manifests/"] = lambda login: (200, {}, encode_manifest(digest)) if login else challenge
    server.set_answer("/v2/a/b/blobs/", 307, Location=f"https://localhost:{elsewhere.port}/blob")
    elsewhere.set_answer("/blob", body=config)
    assert make_registry(server).entry("linux/amd64")["digest"]
    assert any(login for path, login in server.seen if "/blobs/" in path)
    assert set(elsewhere.seen) == {("/blob", None)}


def test_a_realm_of_somebody_else_gets_no_login(
    server: ScriptedServer, elsewhere: ScriptedServer, tmp_path: Path
) -> None:
    write_login(server, tmp_path)
    realm = f'Bearer realm="https://localhost:{elsewhere.port}/token",service="x"'
    server.answers["/v2/a/b/"] = (401, {"WWW-Authenticate": realm}, b"")
    elsewhere.set_answer("/token", 401)
    with pytest.raises(Failed, match=r"a different domain\. It was not sent"):
        make_registry(server).entry("linux/amd64")
    assert [login for _, login in elsewhere.seen] == [None]
    server.answers["/v2/a/b/"] = (401, {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:9/token"'}, b"")
    with pytest.raises(Failed, match="not https"):
        make_registry(server).entry("linux/amd64")


def test_the_registrys_own_realm_gets_it(server: ScriptedServer, tmp_path: Path) -> None:
    write_login(server, tmp_path)
    realm = f'Bearer realm="http://127.0.0.1:{server.port}/token",service="x"'
    refused = (401, {"WWW-Authenticate": realm}, b"")
    server.answers["/v2/a/b/manifests/"] = lambda login: (
        (200, {}, encode_index(0)) if login == "Bearer abc" else refused
    )
    server.set_answer("/token", body=encode_document(token="abc"))
    assert make_registry(server).entry("linux/amd64")["platforms"] == []
    assert next(login for path, login in server.seen if path.startswith("/token")) == _basic_header()
    for body in (encode_document(token="a\r\nX-Evil: 1"), encode_document(token=1), b"{}", b"[" * 60_000, b" " * 2**17):
        server.set_answer("/token", body=body)
        with pytest.raises(Failed):
            make_registry(server).entry("linux/amd64")


@pytest.mark.parametrize(
    ("registry", "realm", "own"),
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
def test_whose_realm_it_is(registry: str, realm: str, own: bool) -> None:
    assert registry_client.is_same_owner(registry, realm) is own


def write_login(liar: ScriptedServer, folder: Path) -> None:
    auths = {f"127.0.0.1:{liar.port}": {"auth": base64.b64encode(b"me:hunter2").decode()}}
    (folder / "config.json").write_text(json.dumps({"auths": auths}))


def _basic_header() -> str:
    return "Basic " + base64.b64encode(b"me:hunter2").decode()
