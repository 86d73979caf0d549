"""A real registry on loopback, images built without a Docker Engine, and a proxy that injects faults."""

import gzip
import hashlib
import io
import json
import random
import shutil
import socket
import struct
import subprocess
import tarfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from tests.http_servers import QuietHandler
from tests.remote.sshd import free_port

PROGRAM = shutil.which("docker-registry")
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

#: a program for Linux on x86_64 that waits forever: pause() in a loop
_CODE = bytes.fromhex("b822000000 0f05 ebf7")
_ENTRY = 0x400078
WAITS = (
    struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, _ENTRY, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 120 + len(_CODE), 120 + len(_CODE), 0x1000)
    + _CODE
)


@dataclass
class Registry:
    """A registry process."""

    #: storage
    folder: Path
    #: lines of users with access; empty: everyone
    htpasswd: str = ""
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        auth = ""
        if self.htpasswd:
            (self.folder / "htpasswd").write_text(self.htpasswd + "\n")
            auth = f"auth: {{htpasswd: {{realm: tests, path: {self.folder}/htpasswd}}}}\n"
        (self.folder / "config.yml").write_text(
            "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/data}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.address}'}}\n{auth}"
        )
        assert PROGRAM is not None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", str(self.folder / "config.yml")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=10)
            self.process = None

    # -- images --------------------------------------------------------------------------------------------------

    def push(
        self,
        repository: str,
        tag: str,
        *,
        platforms: tuple[str, ...] = ("linux/amd64", "linux/arm64"),
        seed: int = 0,
        layer_bytes: tuple[int, ...] = (2000,),
        version: str = "0.32.0",
        config: dict[str, Any] | None = None,
    ) -> str:
        """Build an image of random layers for these platforms and push it with this tag. Returns its index's digest.

        The layers depend on the repository, so that no other test's image has the same Id.

        Args:
            config: additional fields of the image's config; with one the image can run: /wait waits forever, on x86_64.
        """
        rows = []
        for platform in platforms:
            manifest = self._manifest(repository, platform, seed, layer_bytes, version, config)
            digest = self.put_manifest(repository, None, manifest, MANIFEST)
            os_name, _, architecture = platform.partition("/")
            platform_entry = {"os": os_name, "architecture": architecture}
            rows.append({"mediaType": MANIFEST, "digest": digest, "size": len(manifest), "platform": platform_entry})
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
        return self.put_manifest(repository, tag, index, INDEX)

    def delete(self, repository: str, digest: str) -> None:
        answer = requests.delete(f"http://{self.address}/v2/{repository}/manifests/{digest}", timeout=10)
        assert answer.status_code == 202, answer.text

    def _manifest(
        self,
        repository: str,
        platform: str,
        seed: int,
        layer_bytes: tuple[int, ...],
        version: str,
        extra_config: dict[str, Any] | None = None,
    ) -> bytes:
        layers, diff_ids = [], []
        rows = [
            (f"layer-{n}", random.Random(f"{repository}{platform}{seed}{n}").randbytes(size))
            for n, size in enumerate(layer_bytes)
        ]
        for name, content in [*rows, *([("wait", WAITS)] if extra_config is not None else [])]:
            raw = _build_tar(name, content)
            packed = gzip.compress(raw, mtime=0)
            layers.append({"mediaType": LAYER, "size": len(packed), "digest": self.put_blob(repository, packed)})
            diff_ids.append(_digest(raw))
        os_name, _, architecture = platform.partition("/")
        config = {
            "os": os_name,
            "architecture": architecture,
            "created": f"2026-10-0{1 + seed}T00:00:00Z",
            "config": {
                "Env": ["PATH=/bin"],
                "Labels": {"ai.vllm.version": version},
                "Cmd": ["/layer-0"],
                **(extra_config or {}),
            },
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [{"created": "2026-10-01T00:00:00Z", "created_by": "tests"} for _ in layers],
        }
        data = json.dumps(config).encode()
        config_entry = {"mediaType": CONFIG, "size": len(data), "digest": self.put_blob(repository, data)}
        return json.dumps(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_entry, "layers": layers}
        ).encode()

    def put_blob(self, repository: str, data: bytes) -> str:
        base = f"http://{self.address}"
        where = requests.post(f"{base}/v2/{repository}/blobs/uploads/", timeout=10).headers["Location"]
        joined = "&" if "?" in where else "?"
        answer = requests.put(f"{where}{joined}digest={_digest(data)}", data=data, timeout=30)
        assert answer.status_code == 201, answer.text
        return _digest(data)

    def put_manifest(self, repository: str, tag: str | None, data: bytes, kind: str) -> str:
        url = f"http://{self.address}/v2/{repository}/manifests/{tag or _digest(data)}"
        answer = requests.put(url, data=data, headers={"Content-Type": kind}, timeout=10)
        assert answer.status_code == 201, answer.text
        return _digest(data)


class Proxy:
    """A proxy in front of a registry that can answer 500 and cut connections.

    `seen` holds the path and the number of sent bytes of each request.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.seen: list[tuple[str, int]] = []
        self.ranges: list[str] = []
        self.errors: dict[str, int] = {}  # part of a path -> number of requests that get 500
        self.instead: dict[str, str] = {}  # part of a path -> path of the answer
        self.cuts: dict[str, list[int]] = {}  # part of a path -> bytes after which each answer is cut
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count_requests(self, part: str) -> int:
        return sum(part in path for path, _ in self.seen)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                for part in [part for part, left in proxy.errors.items() if part in self.path and left > 0]:
                    proxy.errors[part] -= 1
                    proxy.seen.append((self.path, 0))
                    self.send_error(500)
                    return
                self._forward()

            do_HEAD = do_GET

            def _forward(self) -> None:
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                if "Range" in headers:
                    proxy.ranges.append(headers["Range"])
                path = next((other for part, other in proxy.instead.items() if part in self.path), self.path)
                url = f"http://{proxy.registry.address}{path}"
                try:
                    answer = requests.request(self.command, url, headers=headers, timeout=30)
                except requests.ConnectionError:
                    self.send_error(502)
                    return
                body = answer.content
                cut = next((cuts.pop(0) for part, cuts in proxy.cuts.items() if part in self.path and cuts), None)
                self.send_response(answer.status_code)
                for key, value in answer.headers.items():
                    if key.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(key, value)
                self.end_headers()
                sent = body[: cut if cut is not None else len(body)] if self.command == "GET" else b""
                proxy.seen.append((self.path, len(sent)))
                self.wfile.write(sent)
                if cut is not None:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True

        return Handler


def _build_tar(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o755
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
