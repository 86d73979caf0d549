"""Serve a verified model to other hosts, using a hub's protocol.

Only the files of the model are served, read only, from the paths where they were verified: a path that has since become a
symlink is refused. Every reader verifies the received files against the hashes in the lock.
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
RANGE_PATTERN = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")


def copy_token(secrets: Mapping[str, Secret]) -> Secret | None:
    """Return the token for copies of a model, or None if this run has none."""
    return peers.find_token(secrets, COPY_PURPOSE)


@contextmanager
def reach_all(urls: Sequence[str], name: str, token: Secret | None) -> Iterator[list[str]]:
    """Yield the addresses at which a peer answers, for the duration of the copy. Raises Failed if it does not answer."""
    with peers.reach_all(urls, name, token, "remove `from` to use the hub") as reachable:
        yield reachable


@contextmanager
def reach_first(urls: Sequence[str], name: str, token: Secret | None) -> Iterator[str]:
    """Yield the first address at which a peer answers, for the duration of the copy. Raises Failed if it does not answer."""
    with peers.reach_first(urls, name, token, "remove `from` to use the hub") as url:
        yield url


def start_server(
    machine: Machine,
    folder: Path,
    model: tuple[str, str],
    files: Sequence[Mapping[str, Any]],
    token: Secret,
    reader_count: int,
    bind_address: str = "",
) -> int:
    """Start a process that serves files of a model (id, commit) and outlives this process. Returns its port."""
    served_files = {
        file["path"]: [expected_hash(file), file["size_bytes"], os.path.realpath(folder / file["path"])]
        for file in files
    }
    request = {"id": model[0], "commit": model[1], "files": served_files, "readers": reader_count, "bind": bind_address}
    return peers.start_server(machine, "sparkwright.host.models.peer", "the model", request, token)


class _ModelHandler(peers.PeerHandler):
    """Serves the paths of a hub, ID/resolve/COMMIT/PATH, with HEAD, GET and Range."""

    def handle_path(self, path: str) -> None:
        prefix = f"/{self.server.request['id']}/resolve/{self.server.request['commit']}/"
        name = path.removeprefix(prefix) if path.startswith(prefix) else ""
        file = self.server.request["files"].get(name)
        if file is None:
            self.send_empty(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._send_file(*file)

    def _send_file(self, etag: str, size: int, path: str) -> None:
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
    """Open a path without symlinks. Raises OSError if a symlink was created in it since the file was verified."""
    if os.path.realpath(path) != path:
        raise PermissionError(f"{path} was replaced with a symlink")
    return os.open(path, flags | os.O_NOFOLLOW)


def _parse_range(header: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte (inclusive) of a Range header; those of the whole file if it is invalid."""
    match = RANGE_PATTERN.fullmatch(header)
    if match is None:
        return 0, size - 1
    first, last = match.groups()
    return int(first), min(int(last), size - 1) if last else size - 1


if __name__ == "__main__":
    peers.serve(_ModelHandler, "model-peer")
