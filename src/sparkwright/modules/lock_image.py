"""The `lock_image` module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.engine import image as engine_image
from sparkwright.errors import SparkwrightError
from sparkwright.modules import docker_image, registry_errors
from sparkwright.modules.base import Context, Module, Result, arg


class LockImage(Module["LockImage.Args"]):
    """Ask the registry what a tag means now: its digest and platforms. Pulls nothing.

    When the registry does not answer, an image of that tag on the host is taken, and it says so.

    Returns: digest, platforms, engine_version, created, size_bytes (null where not known).

    Refused when the image has nothing for this host's platform. Fails when the tag is not there, or nobody answers and the
    host has no such image.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag")

    def run(self, args: Args, context: Context) -> Result:
        from docker.errors import APIError
        from requests import RequestException

        client: Any = context.docker()
        try:
            found = client.api.inspect_distribution(args.ref)
        except (APIError, RequestException) as error:
            explained = registry_errors.explain(
                args.ref, str(getattr(error, "explanation", "") or f"timeout ({error})")
            )
            local = self._local(client, args.ref)
            if local is None or not isinstance(explained, registry_errors.RegistryDown):
                raise explained from None
            context.note(f"the registry does not answer; pinned what the host has: {local['digest']}")
            return Result(msg=local["digest"], data=local)
        platforms = docker_image.platforms_of(found)
        docker_image.refuse_other_platforms(platforms, args.ref, docker_image.platform_of(context.machine))
        digest = found["Descriptor"]["digest"]
        entry = {"digest": digest, "platforms": platforms, "engine_version": None, "created": None, "size_bytes": None}
        return Result(msg=digest, data=entry)

    @staticmethod
    def _local(client: Any, ref: str) -> dict[str, Any] | None:
        from docker.errors import NotFound

        try:
            image = client.api.inspect_image(ref)
        except (NotFound, SparkwrightError):
            return None
        repository = ref.rpartition(":")[0]
        digests = [one.partition("@")[2] for one in image.get("RepoDigests") or () if one.startswith(repository + "@")]
        if not digests:
            return None
        platform = f"{image.get('Os', 'linux')}/{image['Architecture']}"
        version = engine_image.version_of(image.get("Config") or {})
        return {
            "digest": digests[0],
            "platforms": [platform],
            "engine_version": version,
            "created": image.get("Created"),
            "size_bytes": None,
        }
