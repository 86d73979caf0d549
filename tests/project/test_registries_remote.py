"""Registries over https and ssh: the certificate and the host key are verified, and nothing prompts."""

import hashlib
import os
import ssl
import struct
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.certificate import write_self_signed
from tests.http_servers import QuietHandler, in_background
from tests.project.test_registries import project, run, run_measured, work
from tests.remote.sshd import SSHD, Sshd

__all__ = ["project", "work"]


class GitBackend(QuietHandler):
    """`git http-backend` for one repository. closed: it requires a password."""

    top: Path
    requests: list[str]
    closed = False

    def do_GET(self) -> None:
        if self.closed:
            self.reply(401, headers={"WWW-Authenticate": "Basic"})
            return
        path, _, query = self.path.partition("?")
        self.requests.append(path)
        length = int(self.headers.get("Content-Length") or 0)
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.top),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        command, body = ["git", "http-backend"], self.rfile.read(length)
        result = subprocess.run(command, env=env, input=body, capture_output=True, check=False, timeout=60)
        head, _, body = result.stdout.partition(b"\r\n\r\n")
        rows = dict(row.split(": ", 1) for row in head.decode().split("\r\n") if ": " in row)
        self.reply(int(rows.pop("Status", "200").split()[0]), body, rows)

    do_POST = do_GET


@pytest.fixture
def https(tmp_path: Path, work: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the repository's URL, the certificate, and the requested paths."""
    certificate, key = write_self_signed(tmp_path)
    requests: list[str] = []
    handler = type("Handler", (GitBackend,), {"top": tmp_path, "requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with in_background(server):
        yield f"https://localhost:{server.server_address[1]}/theirs.git", certificate, requests


def test_https_with_a_verified_certificate(
    project: Path, https: tuple[str, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate, requests = https
    (project / "registries.yml").write_text(f"ours: {{url: '{url}', recipes: recipes}}\n")
    refused = run(project, "recipe.search", "tiny")
    assert refused.returncode == 3 and "certificate" in refused.stderr and not requests
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    result = run(project, "recipe.search", "tiny")
    assert result.returncode == 0 and "@ours/tiny-fp8" in result.stdout, result.stderr
    assert requests[0] == "/theirs.git/info/refs"
    count = len(requests)
    completed = run(project, "recipe.import", "@ours/tiny-fp8", "--yes")
    assert completed.returncode == 0, completed.stderr
    assert len(requests) == count, "the commit was fetched before"


def test_repository_that_requires_a_password_is_refused(
    project: Path, https: tuple[str, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate, _ = https
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    monkeypatch.setattr(GitBackend, "closed", True)
    (project / "registries.yml").write_text(f"ours: {{url: '{url}'}}\n")
    refused = run(project, "recipe.search", "tiny")
    assert refused.returncode == 3 and "registry ours: git failed: " in refused.stderr
    assert "Authentication failed" in refused.stderr


@pytest.mark.skipif(SSHD is None, reason="no sshd")
def test_ssh_with_a_known_host_key(project: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")], check=True)
    config, known_hosts = tmp_path / "ssh_config", tmp_path / "known_hosts"
    config.write_text(
        f"IdentityFile {tmp_path}/id\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {known_hosts}\n"
    )
    monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -F {config}")
    sshd = Sshd(tmp_path / "sshd", tmp_path / "home")
    sshd.start()
    try:
        (project / "registries.yml").write_text(
            f"ours: {{url: 'ssh://127.0.0.1:{sshd.port}{tmp_path}/theirs.git', recipes: recipes}}\n"
        )
        refused = run(project, "recipe.search", "tiny")
        assert refused.returncode == 3 and not (project / "registries.lock").exists(), refused.stdout
        known_hosts.write_text(sshd.known_hosts_line())
        result = run(project, "recipe.search", "tiny")
        assert result.returncode == 0 and "@ours/tiny-fp8" in result.stdout, result.stderr
    finally:
        sshd.stop()


def encode_pack_entry(kind: int, size: int, body: bytes, base: bytes = b"") -> bytes:
    """Encode an object of a pack: its type and unpacked size, for a delta the id of its base, and the zlib stream."""
    head = bytearray([(kind << 4) | (size & 15)])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 127)
        size >>= 7
    return bytes(head) + base + zlib.compress(body)


def encode_length(number: int) -> bytes:
    """Encode a size in the format of a delta."""
    encoded = bytearray([number & 127])
    while number := number >> 7:
        encoded[-1] |= 0x80
        encoded.append(number & 127)
    return bytes(encoded)


def hash_object(kind: str, pieces: Iterable[bytes], size: int) -> bytes:
    digest = hashlib.sha1(f"{kind} {size}\0".encode())
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def build_delta_bomb(mib: int) -> tuple[bytes, str]:
    """Return a pack of some kilobytes and its commit; one of its files has this many MiB."""
    base = bytes(2**20)
    base_id = hash_object("blob", [base], len(base))
    size = mib * 2**20
    copy = b"\xc0\x10"  # 0x100000 bytes from offset 0
    delta = encode_length(len(base)) + encode_length(size) + copy * mib
    large_id = hash_object("blob", (base for _ in range(mib)), size)
    tree = b"100644 a.yaml\0" + base_id + b"100644 b.yaml\0" + large_id
    tree_id = hash_object("tree", [tree], len(tree))
    commit = f"tree {tree_id.hex()}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n".encode()
    commit_id = hash_object("commit", [commit], len(commit))
    body = b"PACK" + struct.pack(">II", 2, 4)
    body += encode_pack_entry(3, len(base), base) + encode_pack_entry(7, len(delta), delta, base_id)
    body += encode_pack_entry(2, len(tree), tree) + encode_pack_entry(1, len(commit), commit)
    return body + hashlib.sha1(body).digest(), commit_id.hex()


def test_delta_that_unpacks_to_700_mib_is_refused(
    project: Path, https: tuple[str, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate, _ = https
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    pack, commit = build_delta_bomb(700)
    bare = tmp_path / "theirs.git"
    subprocess.run(["git", "-C", bare, "index-pack", "--stdin"], input=pack, check=True, capture_output=True)
    subprocess.run(["git", "-C", bare, "update-ref", "refs/heads/main", commit], check=True)
    assert len(pack) < 10_000
    (project / "registries.yml").write_text(f"ours: {{url: '{url}'}}\n")
    code, stderr, peak_kib = run_measured(project, "recipe.search", "a")
    assert code == 3 and "registry ours: git failed: fatal: " in stderr, stderr
    assert peak_kib < 256 * 1024, f"{peak_kib // 1024} MiB"
