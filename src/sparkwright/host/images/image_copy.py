"""Copy an image between members of a cluster: serve it, fetch it from a member instead of the registry, undo a `docker load`.

The receiver passes the archive to `docker load`. An Id is a hash of everything in an image, and Docker compares each layer with
it; the lock contains the Ids for the registry's digest. An image with any other Id is removed again, along with everything else
that the archive contained.

The sending host exports the image in the format of `docker save`, by its Id, so that the archive contains no names. It writes
nothing to disk. An engine with overlay2 first writes the whole image to its own folder, so only MAX_CONCURRENT_EXPORTS hosts
are served at a time; the others retry.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host import peers
from sparkwright.host.images import image_archive, image_names
from sparkwright.host.machine import Machine
from sparkwright.host.module import Context
from sparkwright.host.runs.context import DockerEngine
from sparkwright.secret import Secret
from sparkwright.transport import http
from sparkwright.transport.connection import MinimumRate, TransportError
from sparkwright.trust import shapes
from sparkwright.trust.image_name import ImageReference
from sparkwright.visible import one_line

#: events that Docker reports when a user or a program names an image; a load causes none of them
NAMING_EVENTS = ("pull", "tag", "import", "build")

MAX_TRIES = 2
#: maximum wait for the first byte: an engine that first writes the whole image to disk sends nothing until it is complete
FIRST_BYTE_TIMEOUT_S = 600.0
#: maximum wait while the member serves other hosts, and retry interval
BUSY_MEMBER_TIMEOUT_S, POLL_S = 3600.0, 1.0
#: low, because an engine may pause for minutes while it reads the next layer
MIN_RATE = MinimumRate(512 * 2**20, 600.0)
#: an engine with overlay2 keeps the archive until its layers are unpacked
SPACE_FACTOR = 2
#: schema of a member's offer of an image
OFFER_SHAPE = {
    "urls": [str],
    "size_bytes": lambda value: shapes.number_between(1, 2**42)(shapes.integer(value)),
    "containerd": bool,
}

COPY_PURPOSE = "image copy"
IMAGE_PATH = "/image"
MAX_CONCURRENT_EXPORTS = 2
CHUNK_BYTES = 2**20
#: timeout of the Docker API for exporting or loading an image
SAVE_OR_LOAD_TIMEOUT_S = 3600
_EXPORT_SLOTS = threading.BoundedSemaphore(MAX_CONCURRENT_EXPORTS)


class StreamBroken(Failed):
    """The stream was interrupted; a retry may help."""


@dataclass(frozen=True, slots=True)
class ImageNames:
    """The names of an engine's images at one moment."""

    #: Ids by REPOSITORY:TAG
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Ids of images without a tag or a digest
    nameless: Sequence[str] = ()
    #: time of the listing, for the events API: seconds since the epoch, with fractions
    at: str = "0"


def list_names(api: Any) -> ImageNames:
    """Return the current names of an engine's images."""
    ids_by_tag: dict[str, str] = {}
    nameless = []
    for image in api.images():
        tags = [tag for tag in image.get("RepoTags") or () if "<none>" not in tag]
        ids_by_tag |= dict.fromkeys(tags, image["Id"])
        if not image_names.names_of(image):
            nameless.append(image["Id"])
    return ImageNames(ids_by_tag, tuple(nameless), f"{time.time():.6f}")


def undo_load(api: Any, names_before: ImageNames, *kept_tags: str) -> list[str]:
    """Remove loaded images and restore moved tags, except the tags in `kept_tags`. Returns a message for each action."""
    current = list_names(api)
    externally_set_names = _find_externally_set_names(api, names_before.at)
    actions = []
    for tag, image_id in sorted(current.tags.items()):
        previous_id = names_before.tags.get(tag)
        if previous_id == image_id or tag in kept_tags or tag in externally_set_names:
            continue
        if previous_id:
            repository, _, short_tag = tag.rpartition(":")
            api.tag(previous_id, repository, short_tag, force=True)
            actions.append(f"{tag} pointed to {image_id[7:19]} after the load; restored to {previous_id[7:19]}")
        else:
            actions.append(_remove_name(api, tag, image_id, f"{tag} was not requested"))
    loaded_ids = {event["Actor"]["ID"] for event in _iter_events(api, names_before.at, ("load",))}
    for image_id in list_names(api).nameless:
        if image_id not in names_before.nameless and (image_id in loaded_ids or image_id in current.tags.values()):
            actions.append(_remove_name(api, image_id, image_id, f"image {image_id[7:19]} was not requested"))
    return actions


def _remove_name(api: Any, name: str, image_id: str, reason: str) -> str:
    from docker.errors import APIError

    try:
        if not image_names.remove_name(api, name, image_id):
            return f"{reason}, but now names another image; kept it"
    except APIError as error:
        return f"{reason}; Docker did not remove it: {error.explanation or error}"
    return f"{reason}; removed it"


def _find_externally_set_names(api: Any, since: str) -> set[str]:
    """Return the names and Ids of the images that users and other programs have named after `since`."""
    names = set()
    for event in _iter_events(api, since, NAMING_EVENTS):
        actor = event["Actor"]
        names |= {actor["ID"], (actor.get("Attributes") or {}).get("name", "")}
    return names


def _iter_events(api: Any, since: str, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the engine's image events until now."""
    filters = {"type": ["image"], "event": list(kinds)}
    stream = api.events(since=since, until=f"{time.time():.6f}", filters=filters)
    for line in b"".join(stream).splitlines():
        yield json.loads(line)


def copy(
    context: Context,
    ref: str,
    ids: Collection[str],
    platform: str,
    peer: str,
    offer: Mapping[str, Any],
    locked_bytes: int | None = None,
) -> dict[str, Any]:
    """Copy the image from the member that offers it, tag it, and return its inspect data once it is verified.

    Args:
        ids: the Ids that the lock allows for the image.
        offer: the member's offer (OFFER_SHAPE); empty if it does not serve the image.
        locked_bytes: the image's download size, from the lock, which limits the unpacked size; None if unknown.

    Raises:
        Failed: The copy failed, and everything that the archive contained has been removed again.
    """
    api: Any = context.docker().api
    if not offer:
        raise Failed("it does not serve the image.")
    checked_offer = shapes.validate_or_fail(dict(offer), OFFER_SHAPE, f"the image offer of {peer}")
    if not ids and not context.machine.sandbox:
        raise Failed("the lock has no image Ids to verify a copy against (run `invoke lock`).")
    info = api.info()
    if has_containerd_store(info) and not checked_offer["containerd"]:
        raise Failed("its engine stores images in another format (overlay2), under another Id.")
    size_bytes = checked_offer["size_bytes"]
    _check_disk_space(context.machine, info, size_bytes)
    offered_and_max_bytes = (size_bytes, image_archive.max_unpacked_bytes(size_bytes, locked_bytes))
    token = peers.find_token(context.secrets, COPY_PURPOSE)
    with peers.reach_all(checked_offer["urls"], peer, token, "let each host pull it") as urls:
        for attempt in range(MAX_TRIES):
            url = urls[attempt % len(urls)]
            try:
                return _copy_once(context, url, ImageReference.parse(ref), (ids, platform), peer, offered_and_max_bytes)
            except StreamBroken as error:
                if attempt + 1 == MAX_TRIES:
                    raise
                next_url = urls[(attempt + 1) % len(urls)]  # that of the NIC port's second interface, if it has one
                context.note(f"{peer}: {error.message} Retrying{f' at {next_url}' if len(urls) > 1 else ''}.")
    raise AssertionError


def has_containerd_store(info: Mapping[str, Any]) -> bool:
    """Return True if an engine (given its `info`) uses containerd's image store, where Ids are hashes of manifests."""
    return any(
        name == "driver-type" and str(driver).startswith("io.containerd.snapshotter")
        for name, driver, *_ in info.get("DriverStatus") or ()
    )


def free_bytes(machine: Machine, info: Mapping[str, Any]) -> int | None:
    """Return the free bytes where an engine (given its `info`) stores images; None if unknown or in the sandbox."""
    folder = "" if machine.sandbox else str(info.get("DockerRootDir") or "")
    for path in (Path(folder), *Path(folder).parents) if folder else ():
        try:
            return machine.free_bytes(path)
        except OSError:
            continue
    return None


def _check_disk_space(machine: Machine, info: Mapping[str, Any], size_bytes: int) -> None:
    free_disk_bytes = free_bytes(machine, info)
    if free_disk_bytes is not None and free_disk_bytes < SPACE_FACTOR * size_bytes:
        space = f"{SPACE_FACTOR * size_bytes / 2**30:.1f} GiB needed, {free_disk_bytes / 2**30:.1f} GiB free"
        raise Failed(f"not enough disk space to load a copy: {space}.")


def _copy_once(
    context: Context,
    url: str,
    name: ImageReference,
    accepted_ids_and_platform: tuple[Collection[str], str],
    peer: str,
    offered_and_max_bytes: tuple[int, int],
) -> dict[str, Any]:
    """Copy the image, without retries.

    Args:
        accepted_ids_and_platform: the Ids that the lock allows, and the platform.
        offered_and_max_bytes: the offered size, and the maximum unpacked size.
    """
    api: Any = context.docker().api
    names_before = list_names(api)
    image: dict[str, Any] = {}
    try:
        _load_archive(
            context,
            image_archive.check_pieces(
                _stream_pieces(context, url, peer, offered_and_max_bytes[0]), offered_and_max_bytes[1]
            ),
        )
        image = image_names.find(api, f"{name.repository}@{name.digest}", *accepted_ids_and_platform)
        if image:
            image_names.tag_verified(api, image["Id"], name)
    finally:
        kept_names = (name.verified_tag, f"{name.repository}:{name.tag}") if image else ()
        actions = undo_load(api, names_before, *kept_names)
    for message in actions:
        context.note(message)
    if not image:
        raise Failed("it sent a different image, which was removed.")
    return image


def _load_archive(context: Context, pieces: Iterator[bytes]) -> None:
    from docker.errors import APIError
    from requests import RequestException

    engine: Any = DockerEngine(context.machine, SAVE_OR_LOAD_TIMEOUT_S).client()
    try:
        for line in engine.api.load_image(pieces):
            if problem := line.get("error"):
                raise Failed(f"Docker cannot load its archive: {one_line(str(problem), max_chars=200)}")
    except APIError as error:
        problem = one_line(str(error.explanation or error), max_chars=200)
        raise Failed(f"Docker cannot load its archive: {problem}") from None
    except RequestException as error:
        raise Failed(f"Docker stopped reading its archive ({type(error).__name__}).") from None


def _stream_pieces(context: Context, url: str, peer: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the archive that the member sends. Raises StreamBroken if it is interrupted, and Failed if any member has failed."""
    received_bytes = 0
    try:
        with _open_stream(context, url, peer) as answer:
            for piece in answer:
                context.check_failures()
                received_bytes += len(piece)
                context.progress(min(received_bytes, size_bytes), size_bytes, unit="bytes", text=f"copying from {peer}")
                yield piece
    except TransportError as error:
        raise StreamBroken(f"the copy was interrupted after {received_bytes} bytes: it {error}.") from None


def _open_stream(context: Context, url: str, peer: str) -> http.Stream:
    """Return the member's stream, after waiting while it serves other hosts. Raises Failed and TransportError."""
    headers = peers.auth_headers(peers.find_token(context.secrets, COPY_PURPOSE))
    deadline_s = time.monotonic() + BUSY_MEMBER_TIMEOUT_S
    route = http.Route(keep_alive=True)
    while True:
        stream = http.open_stream(
            "GET", url + IMAGE_PATH, headers=headers, timeout_s=FIRST_BYTE_TIMEOUT_S, rate=MIN_RATE, route=route
        )
        if stream.status == 200:
            return stream
        stream.close()
        if stream.status != 503 or time.monotonic() > deadline_s:
            raise Failed(f"it cannot export the image (HTTP {stream.status}).")
        context.check_failures()
        context.progress(0, 0, text=f"{peer} serves other hosts first")
        time.sleep(POLL_S)


def start_server(machine: Machine, image_id: str, token: Secret, reader_count: int, bind_address: str) -> int:
    """Start a process that serves the image with this Id and outlives this process. Returns its port."""
    request = {"image": image_id, "readers": reader_count, "bind": bind_address}
    return peers.start_server(machine, "sparkwright.host.images.image_copy", "the image", request, token)


class _ImageHandler(peers.PeerHandler):
    """Serves one request; 503 while MAX_CONCURRENT_EXPORTS others are served. A response without its last chunk is incomplete."""

    timeout = 600  # the receiving engine reads nothing while it unpacks a layer

    def handle_path(self, path: str) -> None:
        if path != IMAGE_PATH or self.command != "GET":
            self.send_empty(404)
        elif not _EXPORT_SLOTS.acquire(blocking=False):
            self.send_empty(503)
        else:
            try:
                self._send_image()
            finally:
                _EXPORT_SLOTS.release()

    def _send_image(self) -> None:
        from docker.errors import DockerException

        try:
            pieces = export_image(str(self.server.request["image"]))
            first_piece = next(pieces)
        except (DockerException, StopIteration):
            return self.send_empty(500)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send_chunk(first_piece)
        for piece in pieces:
            self._send_chunk(piece)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _send_chunk(self, piece: bytes) -> None:
        if piece:
            self.wfile.write(b"%x\r\n" % len(piece))
            self.wfile.write(piece)
            self.wfile.write(b"\r\n")


def export_image(image_id: str) -> Iterator[bytes]:
    """Yield the archive of an image from this host's engine, piece by piece."""
    api: Any = DockerEngine(Machine.from_environment(), SAVE_OR_LOAD_TIMEOUT_S).client().api
    yield from api.get_image(image_id, chunk_size=CHUNK_BYTES)


if __name__ == "__main__":
    peers.serve(_ImageHandler, "image-peer")
