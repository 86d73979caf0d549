from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.engines.engine import Name as EngineName
from sparkwright.engines.engine import of
from sparkwright.errors import SparkwrightError
from sparkwright.host.images import image_names, registry_client
from sparkwright.host.images.image_names import digests_of
from sparkwright.host.images.platform import platform_of
from sparkwright.host.images.registry_errors import NotThere, RegistryDown
from sparkwright.host.module import Context, Module
from sparkwright.modules.image import docker_image
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.image_name import Name

#: facts that only the registry's own API reports
UNKNOWN: dict[str, Any] = {"manifests": [], "engine_version": None, "created": None, "size_bytes": None}


class LockImage(Module["LockImage.Args"]):
    """Ask the registry what a tag means now: its digest, and a manifest for each platform. Pulls nothing.

    The registry's own API is asked for the depth (with docker's credentials), and the Docker Engine when the API can't be
    reached from here: then manifests, engine_version, created and size_bytes are unknown. When nobody answers, or the tag is
    gone, an image of that tag on the host is taken, and it says so.

    Returns: digest, platforms, manifests (platform, digest, config, size_bytes), engine_version, created, size_bytes (null
    where not known), gone (whether the pinned digest is no longer in the registry; null when that was not asked).

    Refused when the image has nothing for this host's platform. Fails when the tag is not there, or nobody answers, and the
    host has no such image.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag")
        mirror: str = arg("a mirror, as HOST[:PORT]; used when the tag's registry is down", default="")
        pinned: str = arg("the digest that the lock holds: is it still in the registry?", default="")
        engine: EngineName = arg("the engine in the image, whose version is asked for", default="vllm")

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        platform = platform_of(context.machine)
        try:
            entry = self._of_registry(api, args, platform, context)
        except (NotThere, RegistryDown) as error:
            local = self._of_host(api, args)
            if local is None:
                raise
            context.note(f"{error.message} Using the host's copy: {local['digest']}")
            return Result(msg=local["digest"], data=local)
        docker_image.refuse_other_platforms(entry["platforms"], args.ref, platform)
        gone = _gone(api, args) if args.pinned and args.pinned != entry["digest"] else None
        return Result(msg=entry["digest"], data={**entry, "gone": gone})

    @staticmethod
    def _of_registry(api: Any, args: Args, platform: str, context: Context) -> dict[str, Any]:
        name = Name.given(args.ref)
        try:
            return _deep(api, name, platform, context, args.engine)
        except RegistryDown as error:
            if not args.mirror:
                raise
            context.note(f"{error.message} Using the mirror {args.mirror}; its tag may be older.")
            return _deep(api, name.at(args.mirror), platform, context, args.engine)

    @staticmethod
    def _of_host(api: Any, args: Args) -> dict[str, Any] | None:
        """Return the entry of an image on the host, if the engine noted its digest at a pull."""
        ref = args.ref
        image = image_names.find(api, ref)
        known = map(Name.parse, image.get("RepoDigests") or ())
        own = [name.digest for name in known if name.repository == Name.parse(ref).repository]
        digests = own or digests_of(image)
        if not digests:
            return None
        about = {"digest": digests[0], "platforms": [image_names.platform_of(image)], "created": image.get("Created")}
        engine = of(args.engine).version_in_image(image.get("Config") or {})
        return {**UNKNOWN, **about, "engine_version": engine, "gone": None}


def _deep(api: Any, name: Name, platform: str, context: Context, engine: EngineName) -> dict[str, Any]:
    """Return the entry from the registry's API; if it can't be reached from here, the fewer facts that the Docker Engine can
    get."""
    if not context.machine.sandbox:
        try:
            return registry_client.open_registry(api, name).entry(platform, of(engine))
        except RegistryDown:
            pass  # the engine may have a proxy, a mirror or certificates of its own
    found = docker_image.asked_of_registry(api, name)
    return {**UNKNOWN, **found}


def _gone(api: Any, args: LockImage.Args) -> bool | None:
    """Return True if the registry has lost the pinned digest, None if that is unknown."""
    name = Name.parse(args.ref)
    try:
        docker_image.asked_of_registry(api, Name(name.repository, name.tag, args.pinned))
    except NotThere:
        return True
    except SparkwrightError:
        return None
    return False
