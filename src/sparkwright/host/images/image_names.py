"""A host's local images: find them by name, verify them against a pinned digest, and read engine version and options."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.engine import DEFAULT_ENGINE, Engine, get_engine
from sparkwright.host.containers import docker_client, inspection, lifecycle, ownership
from sparkwright.host.machine import Machine
from sparkwright.host.module import Context
from sparkwright.trust.image_name import ImageReference, digest_of

#: Docker's architecture names, keyed by the kernel's
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
#: limits on the container that prints an engine's version or options
RUN_TIMEOUT_S = 90
MEMORY_LIMIT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class EngineImage:
    """The inference engine inside an image."""

    #: None if unknown
    version: str | None
    #: differences from a known release, as the engine's `image.difference` returns them; None if the engine printed none
    options: Mapping[str, Any] | None = None
    #: the shapes of all options, by name
    all_options: Mapping[str, str] = field(default_factory=dict)


def find(api: Any, ref: str, ids: Collection[str] = (), platform: str = "") -> dict[str, Any]:
    """Return the inspect data of the local image that matches a reference, or an empty dict. Queries no registry.

    Args:
        ref: a tag without a digest is not verified: it matches the image that has the tag now.
        ids: the Ids that the lock allows for the digest, for every platform and image store. If empty, an image matches by
            the digest that Docker recorded when it was pulled.
        platform: the required platform, such as linux/arm64; empty for any.
    """
    reference = ImageReference.parse(ref)
    if not reference.digest:
        return inspect(api, reference.pull_reference)
    for name in (reference.pull_reference, *ids, reference.digest):
        image = inspect(api, name)
        if has_digest(image, reference.digest, ids) and platform in ("", platform_of(image)):
            return image
    return {} if ids else _find_pulled_elsewhere(api, reference.digest, platform)


def inspect(api: Any, ref: str) -> dict[str, Any]:
    """Return Docker's inspect data of an image, by name or Id, or an empty dict if there is no such image."""
    try:
        return inspection.validate_image(api.inspect_image(ref))
    except docker_client.errors().ImageNotFound:
        return {}


def has_digest(image: Mapping[str, Any], digest: str, ids: Collection[str] = ()) -> bool:
    """Return True if a local image, given by its inspect data, has this digest. `ids` as in `find`."""
    return bool(image) and (image["Id"] in (digest, *ids) or (not ids and digest in digests_of(image)))


def platform_of(image: Mapping[str, Any]) -> str:
    """Return an image's platform, such as linux/arm64, from its inspect data."""
    return f"{image.get('Os') or 'linux'}/{image.get('Architecture')}"


def digests_of(image: Mapping[str, Any]) -> list[str]:
    """Return the registry digests that Docker recorded when an image was pulled, from its inspect data."""
    return list(dict.fromkeys(digest_of(ref) for ref in image.get("RepoDigests") or ()))


def name_of(api: Any, ref: str, image_id: str) -> str:
    """Return a readable name for a container's image in `docker ps`: a form of `ref` that names this image, else the Id."""
    reference = ImageReference.parse(ref)
    names = [reference.pull_reference]
    if reference.digest:
        names = [ref, reference.pull_reference, reference.verified_tag]
    return next((name for name in names if inspect(api, name).get("Id") == image_id), image_id)


def names_of(image: Mapping[str, Any]) -> list[str]:
    """Return an image's tags and digests, from its inspect data or its entry in Docker's image list."""
    names = (*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ()))
    return [name for name in names if "<none>" not in name]


def remove_name(api: Any, name: str, image_id: str) -> bool:
    """Remove a name from an image. Returns False, and keeps the name, if it now belongs to another image.

    A name that does not exist counts as removed. Raises docker's APIError if Docker refuses.
    """
    current_id = inspect(api, name).get("Id")
    if current_id not in (None, image_id):
        return False
    if current_id:
        with contextlib.suppress(docker_client.errors().NotFound):  # the image was removed together with its last tag
            api.remove_image(name)
    return True


def tag_verified(api: Any, image_id: str, reference: ImageReference) -> None:
    """Tag a verified image with the tag that records its digest, and with the reference's tag if it has one."""
    repository, _, tag = reference.verified_tag.rpartition(":")
    api.tag(image_id, repository, tag, force=True)
    if reference.tag:
        api.tag(image_id, reference.repository, reference.tag, force=True)


def _find_pulled_elsewhere(api: Any, digest: str, platform: str) -> dict[str, Any]:
    """Return an image with this digest that was pulled from another repository, such as a mirror."""
    references: Iterator[str] = (name for image in api.images() for name in image.get("RepoDigests") or ())
    reference = next((name for name in references if digest_of(name) == digest), "")
    image = inspect(api, reference) if reference else {}
    return image if platform in ("", platform_of(image)) else {}


def machine_platform(machine: Machine) -> str:
    """Return the platform of images for this host, such as linux/arm64."""
    return f"linux/{ARCHITECTURES.get(machine.architecture, machine.architecture)}"


def read_engine_image(
    context: Context, ref: str, ids: Collection[str] = (), engine: Engine | None = None
) -> EngineImage | None:
    """Return the engine version and options of an image, or None if the image is not on the host. `ids` as in `find`.

    The version comes from the image's labels or environment, else from the engine, which runs in a temporary container without
    GPU or network. The state folder caches both per image.
    """
    api: Any = context.docker().api
    image = find(api, ref, ids)
    if not image:
        return None
    engine = engine or get_engine(DEFAULT_ENGINE)
    reader = engine.image
    if reader is None:
        return EngineImage(None)
    suffix = "" if engine.name == DEFAULT_ENGINE else f"-{engine.name}"
    name = f"engines/{image['Id'].removeprefix('sha256:')[:16]}{suffix}"
    cached = context.state.read(name)
    if cached is not None and "options" in cached and reader.is_current(cached["options"]):
        return EngineImage(cached["version"], cached["options"], reader.restore_options(cached["options"]))
    context.note("reading the image's version and options (once)", detail=True)
    version = reader.version_of(image.get("Config") or {})
    version = version or reader.parse_version(_run_in_image(context, image["Id"], reader.VERSION_COMMAND))
    shapes = reader.parse_options(_run_in_image(context, image["Id"], reader.HELP_COMMAND))
    options = reader.difference(shapes) if shapes else None
    if not context.check:
        context.state.write(name, {"ref": ref, "version": version, "options": options})
    return EngineImage(version, options, reader.restore_options(options))


def _run_in_image(context: Context, image_id: str, argv: tuple[str, ...]) -> str:
    """Run a command in a temporary container and return its output, or "" if it fails or times out."""
    from docker.errors import APIError
    from requests import RequestException

    api: Any = context.docker().api
    container_id = ""
    try:
        config = {
            "Image": image_id,
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "HostConfig": {"Memory": MEMORY_LIMIT_BYTES, "NetworkMode": "none"},
        }
        container_id = lifecycle.create(context, config, ownership.HELPER)
        lifecycle.start(context, container_id)
        if api.wait(container_id, timeout=RUN_TIMEOUT_S).get("StatusCode") != 0:
            return ""
        output: bytes = api.logs(container_id, stdout=True, stderr=False)
        output = output or api.logs(container_id, stdout=False, stderr=True)
        return output.decode(errors="replace")
    except (APIError, RequestException):
        return ""
    finally:
        if container_id:
            lifecycle.force_remove(context, container_id)
