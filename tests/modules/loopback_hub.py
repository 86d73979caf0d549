"""A hub on the loopback with the faults of real hubs: cut, damaged, slow or stalled transfers, gated models, outages.

It answers the requests of huggingface_hub, hf_transfer and curl: model info, tree, resolve with HEAD, GET and Range; with a chunk
store also those of hf_xet.
"""

import functools
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.http_server import Handler, Server
from tests.modules.chunk_store import TOKEN, ChunkStore

MODEL = "lab/tiny"
COMMIT = "a" * 40
BLOCK = 64 * 1024


@dataclass
class Faults:
    """The faults of a hub."""

    info: bytes | None = None  #: false answer about the model
    headers: dict[str, dict[str, str]] = field(default_factory=dict)  #: false headers by path
    longer: dict[str, int] = field(default_factory=dict)  #: additional bytes by path
    moved: dict[str, str] = field(default_factory=dict)  #: redirect target by path
    moved_all: str = ""  #: redirect target of every path
    silent: bool = False  #: no answer about the model until `released`
    xet_token: Any = None  #: false answer about the chunk store
    #: bytes after which an answer is cut, `cuts` times, by path
    cut_after: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)  #: number of answers with one wrong byte, by path
    stalled: set[str] = field(default_factory=set)  #: paths of stalled transfers
    stall_when: Callable[[str], bool] = lambda range_header: True  #: returns whether the answer to a Range stalls
    stall_after: int = 0
    rate: float = 0.0  #: bytes per second of one connection
    status: int = 0  #: status of every answer
    busy: list[dict[str, str]] = field(default_factory=list)  #: headers of the next answers, which have the status 429
    busy_path: str = ""  #: end of the paths with such an answer
    busy_method: str = ""  #: method of requests with such an answer; empty for all
    token: str = ""


class LoopbackHub:
    """A hub on the loopback that records its requests.

    Attributes:
        files: contents by path.
        requests: (method, path, Range) of requests for files.
        sent: number of bytes by path.
        paths: all requested paths.
        tokens: received Authorization headers.
    """

    def __init__(
        self, files: dict[str, bytes], lfs: Callable[[str], bool] | None = None, address: str = "127.0.0.1"
    ) -> None:
        self.files = files
        self.lfs = lfs or (lambda path: path.endswith((".safetensors", ".bin")))
        self.faults = Faults()
        self.requests: list[tuple[str, str, str]] = []
        self.sent: dict[str, int] = {}
        self.stalls = threading.Event()
        self.released = threading.Event()
        self.guard = threading.Lock()
        self.tokens: list[str] = []
        self.paths: list[str] = []
        self.store: ChunkStore | None = None
        self.server = Server(0, _Api, self, host=address)
        self.server.start()
        self.url = f"http://{address}:{self.server.port}"

    def add_store(self) -> ChunkStore:
        """Put the large files into a chunk store as well."""
        self.store = ChunkStore()
        rows = [self.row(path) for path in self.files]
        self.store.files = {row["sha256"]: self.files[row["path"]] for row in rows if row["sha256"]}
        return self.store

    def close(self) -> None:
        self.released.set()
        if self.store:
            self.store.close()
        self.server.shutdown()
        self.server.server_close()

    def count_gets(self, path: str) -> int:
        return [request[:2] for request in self.requests].count(("GET", path))

    def lock_entries(self, *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Return the files like the entries of spark.lock."""
        return [self.row(path) for path in sorted(self.files) if path not in without]

    def row(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        lfs = self.lfs(path)
        digest = _file_hash(data, lfs)
        hashes = {"sha256": digest, "blob_id": None} if lfs else {"sha256": None, "blob_id": digest}
        return {"path": path, "size_bytes": len(data), **hashes}

    def xet_headers(self, row: dict[str, Any]) -> dict[str, str]:
        """Return the headers of a file that is in the chunk store; its hash there is invented."""
        if not self.store or not row["sha256"]:
            return {}
        route = f"{self.url}/api/models/{MODEL}/xet-read-token/{COMMIT}"
        return {"X-Xet-Hash": row["sha256"], "X-Xet-Refresh-Route": route}


@functools.cache
def _file_hash(data: bytes, lfs: bool) -> str:
    return (hashlib.sha256(data) if lfs else hashlib.sha1(b"blob %d\0" % len(data) + data)).hexdigest()


class _Api(Handler):
    def route(self) -> None:
        hub: LoopbackHub = self.server.owner  # type: ignore[attr-defined]
        text = "/".join(self.parts)
        path = "/".join(self.parts[4:])
        hub.paths.append(text)
        hub.tokens += self.headers.get_all("Authorization") or []
        # clients resolve `..` in an address: answer nevertheless
        outside = {name.lstrip("./"): name for name in hub.files if name.startswith("..")}
        path = outside.get(text.removeprefix(f"{MODEL}/resolve/"), path)
        if hub.faults.moved_all:
            self.reply(302, b"", {"Location": hub.faults.moved_all})
        elif self._is_busy(hub):
            self.reply(429, {"error": "as told"}, hub.faults.busy.pop(0))
        elif hub.faults.status:
            self.reply(hub.faults.status, {"error": "as told"}, hub.faults.headers.get(""))
        elif hub.faults.token and self.headers.get("Authorization") != f"Bearer {hub.faults.token}":
            self.reply(401, {"error": "gated"}, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif text.startswith(f"api/models/{MODEL}/xet-read-token/") and hub.store:
            answer = {"casUrl": hub.store.url, "accessToken": TOKEN, "exp": int(time.time()) + 3600}
            answer = answer if hub.faults.xet_token is None else hub.faults.xet_token
            names = {"casUrl": "X-Xet-Cas-Url", "accessToken": "X-Xet-Access-Token", "exp": "X-Xet-Token-Expiration"}
            headers = {names[key]: str(value) for key, value in answer.items()} if isinstance(answer, dict) else {}
            self.reply(200, answer, headers)
        elif text.startswith(f"api/models/{MODEL}/tree/"):
            self.reply(200, [{"type": "file", "path": path, "size": len(data)} for path, data in hub.files.items()])
        elif path in hub.faults.moved and text.startswith(f"{MODEL}/resolve/"):
            self.reply(302, b"", {"Location": hub.faults.moved[path], **hub.faults.headers.get(path, {})})
        elif text.startswith(f"api/models/{MODEL}") and hub.faults.silent:
            hub.stalls.set()
            hub.released.wait(60)
            self.close_connection = True
        elif text.startswith(f"api/models/{MODEL}") and hub.faults.info is not None:
            self.reply(200, hub.faults.info)
        elif text.startswith(f"api/models/{MODEL}"):
            siblings = [self._sibling(hub, name) for name in hub.files]
            self.reply(200, {"id": MODEL, "sha": COMMIT, "tags": [], "siblings": siblings})
        elif text.startswith(f"{MODEL}/resolve/") and path in hub.files:
            self._file(hub, path)
        else:
            self.reply(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})

    def _is_busy(self, hub: LoopbackHub) -> bool:
        faults = hub.faults
        is_path = "/".join(self.parts).endswith(faults.busy_path)
        return bool(faults.busy) and is_path and self.command == (faults.busy_method or self.command)

    @staticmethod
    def _sibling(hub: LoopbackHub, path: str) -> dict[str, Any]:
        row = hub.row(path)
        entry: dict[str, Any] = {"rfilename": path, "size": row["size_bytes"], "blobId": row["blob_id"] or "b" * 40}
        if row["sha256"]:
            entry["lfs"] = {"sha256": row["sha256"], "size": row["size_bytes"], "pointerSize": 135}
        return entry

    def _file(self, hub: LoopbackHub, path: str) -> None:
        data, row, range_header = hub.files[path], hub.row(path), self.headers.get("Range", "")
        hub.requests.append((self.command, path, range_header))
        if self.command == "GET" and hub.faults.wrong.get(path, 0) > 0 and not range_header.startswith("bytes=0-0"):
            hub.faults.wrong[path] -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        first, _, last = range_header.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), min(int(last or len(data)), len(data) - 1)
        self.send_response(206 if range_header else 200)
        extra_bytes = hub.faults.longer.get(path, 0) if self.command == "GET" else 0
        headers = {
            "ETag": f'"{row["sha256"] or row["blob_id"]}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "Content-Length": str(end - begin + 1 + extra_bytes),
            **({"Content-Range": f"bytes {begin}-{end}/{len(data)}"} if range_header else {}),
            **hub.xet_headers(row),
            **hub.faults.headers.get(path, {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            part = memoryview(data)[begin : end + 1]  # without a copy: rates are measured
            self._body(hub, path, memoryview(bytes(part) + b"x" * extra_bytes) if extra_bytes else part)

    def _body(self, hub: LoopbackHub, path: str, data: memoryview) -> None:
        faults, began_s, sent = hub.faults, time.monotonic(), 0
        cut = None
        with hub.guard:
            if faults.cuts.get(path, 0) > 0 and len(data) > faults.cut_after[path]:
                faults.cuts[path] -= 1
                cut = faults.cut_after[path]
        stalls = path in faults.stalled and faults.stall_when(self.headers.get("Range", ""))
        while sent < len(data):
            is_cut = cut is not None and sent >= cut
            if stalls and sent >= faults.stall_after and not is_cut:
                self.wfile.flush()
                hub.stalls.set()
                hub.released.wait(60)
                is_cut = True
            if is_cut:
                self.close_connection = True
                return
            piece = data[sent : sent + BLOCK]
            self.wfile.write(piece)
            sent += len(piece)
            with hub.guard:
                hub.sent[path] = hub.sent.get(path, 0) + len(piece)
            if faults.rate:
                time.sleep(max(0.0, sent / faults.rate - (time.monotonic() - began_s)))
