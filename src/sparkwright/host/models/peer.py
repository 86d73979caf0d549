"""Serving a verified model to other hosts, with the protocol of a hub.

Only named files are served, read only, from where they were verified, never through a link that was created later. Every reader
verifies what it receives by the lock's hashes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkwright.host import peers
from sparkwright.host.machine import Machine
from sparkwright.host.models.manifest import expected_hash
from sparkwright.secret import Secret

COPY_PURPOSE = "model copy"
RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")


def copy_token(secrets: Mapping[str, Secret]) -> Secret | None:
    """Return the token that authorizes copying a model."""
    return peers.find_token(secrets, COPY_PURPOSE)


@contextmanager
def reach_all(urls: Sequence[str], name: str, token: Secret | None) -> Iterator[list[str]]:
    """Yield all of a peer's addresses that answer, for the length of the copy. Raises Failed if none does."""
    with peers.reach_all(urls, name, token, "remove `from` to use the hub") as reachable:
        yield reachable


@contextmanager
def reach_first(urls: Sequence[str], name: str, token: Secret | None) -> Iterator[str]:
    """Yield the first of a peer's addresses that answers, for the length of the copy. Raises Failed if none does."""
    with peers.reach_first(urls, name, token, "remove `from` to use the hub") as url:
        yield url


def start_server(
    machine: Machine,
    folder: Path,
    model: tuple[str, str],
    files: Sequence[Mapping[str, Any]],
    token: Secret,
    readers: int,
    bind: str = "",
) -> int:
    """Start a process that serves files and outlives the present one. Returns its port.

    Args:
        model: id, commit.
    """
    rows = {
        file["path"]: [expected_hash(file), file["size_bytes"], os.path.realpath(folder / file["path"])]
        for file in files
    }
    request = {"id": model[0], "commit": model[1], "files": rows, "readers": readers, "bind": bind}
    return peers.start_server(machine, "sparkwright.host.models.peer", "the model", request, token)


class _ModelHandler(peers.PeerHandler):
    """A connection. Paths are a hub's: ID/resolve/COMMIT/PATH, with HEAD, GET and Range."""

    def handle_path(self, path: str) -> None:
        prefix = f"/{self.server.request['id']}/resolve/{self.server.request['commit']}/"
        name = path.removeprefix(prefix) if path.startswith(prefix) else ""
        row = self.server.request["files"].get(name)
        if row is None:
            self.send_empty(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._file(*row)

    def _file(self, etag: str, size: int, path: str) -> None:
        first, last = _parse_range(self.headers.get("Range", ""), size)
        if first > last and size:
            return self.send_empty(416, {"Content-Range": f"bytes */{size}"})
        with open(path, "rb", opener=_open_without_links) as file:
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", self.server.request["commit"])
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if "Range" in self.headers:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if self.command == "GET" and size:
                self.wfile.flush()
                self.connection.sendfile(file, first, last - first + 1)
        return None


def _open_without_links(path: str, flags: int) -> int:
    """Open a path if it is still free of links, as it was when its file was verified. Raises OSError."""
    if os.path.realpath(path) != path:
        raise PermissionError(f"{path} was replaced by a symlink")
    return os.open(path, flags | os.O_NOFOLLOW)


def _parse_range(header: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte of a Range header, both inclusive; the whole file if it is invalid."""
    match = RANGE.fullmatch(header)
    if match is None:
        return 0, size - 1
    first, last = match.groups()
    return int(first), min(int(last), size - 1) if last else size - 1


if __name__ == "__main__":
    peers.serve(_ModelHandler, "model-peer")
