"""Serving a verified image to other hosts, in the format of `docker save`: by its Id, so that the archive contains no names.

Nothing is stored in between. An engine with overlay2 first writes the whole image to its own folder, so only a few hosts are
served at a time; the others retry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.peers import peer_server
from sparkwright.host.runs.context import Engine
from sparkwright.secret import Secret

COPY = "image copy"
PATH = "/image"
AT_ONCE = 2
CHUNK_BYTES = 2**20
#: until the first byte from an engine that first writes the whole image to disk
SAVE_S = 3600
_FREE = threading.BoundedSemaphore(AT_ONCE)


def hand_out(machine: Machine, image_id: str, token: Secret, readers: int, bind: str) -> int:
    """Start a process that serves the image with this Id and outlives the present one. Returns its port."""
    request = {"image": image_id, "readers": readers, "bind": bind}
    return peer_server.start(machine, "sparkwright.host.images.image_peer", "the image", request, token)


class _Reader(peer_server.Reader):
    """A connection. 503: retry, others are being served; a stream without its last chunk is broken."""

    timeout = 600  # the other engine accepts no data while it unpacks a layer

    def hand(self, path: str) -> None:
        if path != PATH or self.command != "GET":
            self.empty(404)
        elif not _FREE.acquire(blocking=False):
            self.empty(503)
        else:
            try:
                self._image()
            finally:
                _FREE.release()

    def _image(self) -> None:
        from docker.errors import DockerException

        try:
            pieces = saved(str(self.server.request["image"]))
            first = next(pieces)
        except (DockerException, StopIteration):
            return self.empty(500)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(first)
        for piece in pieces:
            self._chunk(piece)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _chunk(self, piece: bytes) -> None:
        if piece:
            self.wfile.write(b"%x\r\n" % len(piece))
            self.wfile.write(piece)
            self.wfile.write(b"\r\n")


def saved(image_id: str) -> Iterator[bytes]:
    """Yield the archive of an image in this host's engine."""
    api: Any = Engine(Machine.here(), SAVE_S).client().api
    yield from api.get_image(image_id, chunk_size=CHUNK_BYTES)


if __name__ == "__main__":
    peer_server.serve(_Reader, "image-peer")
