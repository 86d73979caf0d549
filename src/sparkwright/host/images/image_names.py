"""The images of a host: their names, the proof that one is the pinned image, and its engine's version and options."""

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


def find(api: Any, ref: str, ids: Collection[str] = (), platform: str = "") -> dict[str, Any]:
    """Return the inspect of the local image that is verified to be this reference; empty if there is none. Queries no registry.

    Args:
        ref: with a tag alone, the image that has the tag now.
        ids: the Ids that the lock allows for its digest, for every platform and store; empty if the lock has none: then the
            digest that
            the engine recorded at a pull counts.
        platform: such as linux/arm64, to accept only that one.
    """
    name = ImageReference.parse(ref)
    if not name.digest:
        return inspect(api, name.pull_reference)
    candidates = (inspect(api, item) for item in (name.pull_reference, *ids, name.digest))
    verified = (image for image in candidates if has_digest(image, name.digest, ids))
    match = next((image for image in verified if platform in ("", platform_of(image))), {})
    return match if match or ids else _find_pulled_elsewhere(api, name.digest, platform)


def inspect(api: Any, ref: str) -> dict[str, Any]:
    """Return the engine's inspect of an image, by name or Id; empty if there is none."""
    try:
        return inspection.validate_image(api.inspect_image(ref))
    except docker_client.errors().ImageNotFound:
        return {}


def has_digest(image: Mapping[str, Any], digest: str, ids: Collection[str] = ()) -> bool:
    """Return True if a local image has this digest. See `find`.

    Args:
        image: its inspect.
    """
    if not image:
        return False
    return image["Id"] in (digest, *ids) or (not ids and digest in digests_of(image))


def platform_of(image: Mapping[str, Any]) -> str:
    """Return an image's platform, such as linux/arm64, from its inspect."""
    return f"{image.get('Os') or 'linux'}/{image.get('Architecture')}"


def digests_of(image: Mapping[str, Any]) -> list[str]:
    """Return the registry digests that the engine recorded for a local image at a pull, from its inspect."""
    return list(dict.fromkeys(digest_of(ref) for ref in image.get("RepoDigests") or ()))


def name_of(api: Any, ref: str, image_id: str) -> str:
    """Return a name for the image with this Id, as users see it in `docker ps`.

    The reference as written, if the engine resolves it to this image; a tag that names another image is skipped; else the Id.
    """
    name = ImageReference.parse(ref)
    names = (ref, name.pull_reference, name.verified_tag) if name.digest else (name.pull_reference,)
    return next((item for item in names if inspect(api, item).get("Id") == image_id), image_id)


def names_of(image: Mapping[str, Any]) -> list[str]:
    """Return the tags and digests that name an image, from its inspect or its row in the list of images."""
    references = (*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ()))
    return [name for name in references if "<none>" not in name]


def remove_name(api: Any, name: str, image_id: str) -> bool:
    """Remove a name from an image. Returns False, with nothing done, if it names another image by now.

    Raises docker's APIError if the engine refuses. A name that is gone already counts as removed.
    """
    current_id = inspect(api, name).get("Id")
    if current_id not in (None, image_id):
        return False
    if current_id:
        with contextlib.suppress(docker_client.errors().NotFound):  # removed with its last tag
            api.remove_image(name)
    return True


def tag_verified(api: Any, image_id: str, name: ImageReference) -> None:
    """Tag the image that was verified to have this digest."""
    repository, _, tag = name.verified_tag.rpartition(":")
    api.tag(image_id, repository, tag, force=True)
    if name.tag:
        api.tag(image_id, name.repository, name.tag, force=True)


def _find_pulled_elsewhere(api: Any, digest: str, platform: str) -> dict[str, Any]:
    """Return an image of this digest that was pulled under another repository's name, such as a mirror's."""
    references: Iterator[str] = (item for image in api.images() for item in image.get("RepoDigests") or ())
    reference = next((item for item in references if digest_of(item) == digest), "")
    pulled = inspect(api, reference) if reference else {}
    return pulled if platform in ("", platform_of(pulled)) else {}


ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


def machine_platform(machine: Machine) -> str:
    """Return the platform of images for this host, such as linux/arm64."""
    return f"linux/{ARCHITECTURES.get(machine.architecture, machine.architecture)}"


# The engine version and options of an image, read once per image and kept in the state folder.
#
# The image's label or variable comes first; without them the engine prints its version in a temporary container,
# without GPU or network.


RUN_TIMEOUT_S = 90
MEMORY_LIMIT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class EngineImage:
    """The engine of an image."""

    #: None if unknown
    version: str | None
    #: in the form of the engine's `image.difference`; None if the engine did not print them
    options: Mapping[str, Any] | None = None
    #: all options, in full
    all_options: Mapping[str, str] = field(default_factory=dict)


def read_engine_image(
    context: Context, ref: str, ids: Collection[str] = (), engine: Engine | None = None
) -> EngineImage | None:
    """Return the engine version and options of an image, or None if the image is not on the host.

    Args:
        ids: the Ids that prove the image, see `image_names.find`.
    """
    api: Any = context.docker().api
    image = find(api, ref, ids)
    if not image:
        return None
    engine = engine or get_engine(DEFAULT_ENGINE)
    own_image = engine.image
    if own_image is None:
        return EngineImage(None)
    suffix = "" if engine.name == DEFAULT_ENGINE else f"-{engine.name}"
    name = f"engines/{image['Id'].removeprefix('sha256:')[:16]}{suffix}"
    cached = context.state.read(name)
    if cached is not None and "options" in cached and own_image.is_current(cached["options"]):
        return EngineImage(cached["version"], cached["options"], own_image.restore_options(cached["options"]))
    context.note("reading the image's version and options (once)", detail=True)
    version = own_image.version_of(image.get("Config") or {})
    version = version or own_image.parse_version(_run_in_image(context, image["Id"], own_image.ASK_VERSION))
    shapes = own_image.parse_options(_run_in_image(context, image["Id"], own_image.ASK_OPTIONS))
    options = own_image.difference(shapes) if shapes else None
    if not context.check:
        context.state.write(name, {"ref": ref, "version": version, "options": options})
    return EngineImage(version, options, own_image.restore_options(options))


def _run_in_image(context: Context, image_id: str, argv: tuple[str, ...]) -> str:
    """Run a command in a temporary container and return its output; empty if it fails or times out."""
    from docker.errors import APIError
    from requests import RequestException

    api: Any = context.docker().api
    created = ""
    try:
        command = {"Image": image_id, "Entrypoint": [argv[0]], "Cmd": list(argv[1:])}
        config = {**command, "HostConfig": {"Memory": MEMORY_LIMIT_BYTES, "NetworkMode": "none"}}
        created = lifecycle.create(context, config, ownership.HELPER)
        lifecycle.start(context, created)
        result = api.wait(created, timeout=RUN_TIMEOUT_S)
        if result.get("StatusCode") != 0:
            return ""
        text: bytes = api.logs(created, stdout=True, stderr=False) or api.logs(created, stdout=False, stderr=True)
        return text.decode(errors="replace")
    except (APIError, RequestException):
        return ""
    finally:
        if created:
            lifecycle.force_remove(context, created)
