"""A chunk store on the loopback for the real hf_xet; each file is one object of uncompressed chunks.

The protocol is described at https://huggingface.co/docs/xet: a reconstruction has ranges of chunks and the URLs to read them from.
"""

import functools
import time
from typing import Any

from sparkwright.sandbox.http_server import Handler, Server

CHUNK = 64 * 1024
HEADER = 8  # bytes of a chunk's header: version, stored length, compression, length
TOKEN = "xet-short-lived"


class ChunkStore:
    """A chunk store that records its requests.

    Attributes:
        files: content by xet hash.
        rate: bytes per second of a connection; 0 for no limit.
        cuts: number of further answers that end after `cut_after` bytes.
        tokens: received Authorization headers.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.rate = 0.0
        self.cuts, self.cut_after = 0, 0
        self.tokens: list[str] = []
        self.ranges: list[str] = []
        self.server = Server(0, _Api, self)
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def reconstruction(self, xet_hash: str, first: int, last: int) -> dict[str, Any]:
        """Return the location of a file's bytes from first to last."""
        data = self.files[xet_hash]
        begin, end = first // CHUNK, min(last, len(data) - 1) // CHUNK + 1
        chunks, unpacked_bytes = {"start": begin, "end": end}, min(end * CHUNK, len(data)) - begin * CHUNK
        stored = {"start": begin * (CHUNK + HEADER), "end": min(end * (CHUNK + HEADER), len(pack_chunks(data))) - 1}
        location = {"range": chunks, "url": f"{self.url}/objects/{xet_hash}", "url_range": stored}
        return {
            "offset_into_first_range": first - begin * CHUNK,
            "terms": [{"hash": xet_hash, "unpacked_length": unpacked_bytes, "range": chunks}],
            "fetch_info": {xet_hash: [location]},
        }


@functools.lru_cache(maxsize=4)
def pack_chunks(data: bytes) -> bytes:
    """Return a file as an object of chunks."""
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    sizes = [len(chunk).to_bytes(3, "little") for chunk in chunks]
    return b"".join(b"\0" + size + b"\0" + size + chunk for size, chunk in zip(sizes, chunks, strict=True))


class _Api(Handler):
    def route(self) -> None:
        store: ChunkStore = self.server.owner  # type: ignore[attr-defined]
        store.tokens += self.headers.get_all("Authorization") or []
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if self.parts[:2] == ["v1", "reconstructions"] and self.parts[2] in store.files:
            store.ranges.append(self.headers.get("Range", ""))
            self.reply(200, store.reconstruction(self.parts[2], int(first), int(last)))
        elif self.parts[0] == "objects" and self.parts[1] in store.files:
            self._object(store, pack_chunks(store.files[self.parts[1]])[int(first) : int(last) + 1])
        else:
            self.reply(404, {"error": "no"})

    def _object(self, store: ChunkStore, data: bytes) -> None:
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        began_s, end = time.monotonic(), len(data)
        if store.cuts > 0:
            store.cuts, end, self.close_connection = store.cuts - 1, store.cut_after, True
        for at in range(0, end, CHUNK):
            self.wfile.write(data[at : min(at + CHUNK, end)])
            if store.rate:
                time.sleep(max(0.0, at / store.rate - (time.monotonic() - began_s)))
