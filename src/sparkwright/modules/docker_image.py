"""The `docker_image` module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engine import image as engine_image
from sparkwright.errors import Refused
from sparkwright.modules import registry_errors
from sparkwright.modules.base import Change, Context, StateModule, arg
from sparkwright.modules.machine import Machine
from sparkwright.modules.registry_errors import RegistryDown

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
TRIES = 4


@dataclass(frozen=True, slots=True)
class Found:
    """image: the inspect of the image with this digest; empty when it is not there. platform: what this host runs."""

    image: dict[str, Any]
    platform: str


@dataclass
class Layers:
    """Adds up what the engine says about each layer of a pull."""

    done: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def see(self, line: dict[str, Any]) -> bool:
        """Take in one progress line; whether it moved anything."""
        detail, layer = line.get("progressDetail") or {}, line.get("id", "")
        if line.get("status") != "Downloading" or "current" not in detail:
            return False
        self.done[layer] = detail["current"]
        self.total[layer] = detail.get("total") or self.total.get(layer, detail["current"])
        return True


class DockerImage(StateModule["DockerImage.Args", Found]):
    """The image of this digest is on the host, for the host's own platform.

    Present by digest: nothing is asked of any registry. Else the registry is asked for the platforms first, and an image
    that has none for this host is refused before a byte is pulled. Network errors are tried again; layers that are there
    already are not pulled twice.

    Returns: digest, id, engine_version (null when the image does not say), size_bytes.

    Fails: registry down, digest gone, access denied, disk full. Refused: no linux/arm64 in the image for an arm64 host.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag@sha256:digest")
        platform: str = arg("as linux/arm64; the host's own if not given", default="")

    def read(self, args: Args, context: Context) -> Found:
        from docker.errors import ImageNotFound

        platform = args.platform or platform_of(context.machine)
        api: Any = context.docker().api
        try:
            return Found(api.inspect_image(_by_digest(args.ref)), platform)
        except ImageNotFound:
            return Found({}, platform)

    def differences(self, args: Args, found: Found) -> list[Change]:
        return [] if found.image else [Change("image", None, args.ref, "not on the host")]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        image = found.image
        return {
            "digest": args.ref.partition("@")[2],
            "id": image.get("Id", ""),
            "engine_version": engine_image.version_of(image.get("Config") or {}),
            "size_bytes": image.get("Size"),
            "msg": "present" if image else "",
        }

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        tries = Retrying(
            retry=retry_if_exception_type(RegistryDown),
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(multiplier=0.5, max=10),
            before_sleep=lambda state: context.note(
                f"{state.outcome.exception() if state.outcome else ''} Trying again."
            ),
            reraise=True,
        )
        tries(self._pull, args, found.platform, context)
        now = self.read(args, context)
        return {**self.describe(args, now), "msg": "pulled"}

    def _pull(self, args: Args, platform: str, context: Context) -> None:
        from docker.errors import APIError
        from requests import RequestException

        ref = _by_digest(args.ref)
        client: Any = context.docker()
        try:
            refuse_other_platforms(platforms_of(client.api.inspect_distribution(ref)), args.ref, platform)
            repository, _, digest = ref.partition("@")
            self._follow(
                client.api.pull(repository, tag=digest, stream=True, decode=True, platform=platform), args.ref, context
            )
            tag = args.ref.partition("@")[0].rpartition(":")[2]
            client.api.tag(ref, repository, tag, force=True)
        except APIError as error:
            raise registry_errors.explain(args.ref, str(error.explanation or error)) from None
        except RequestException as error:
            raise registry_errors.explain(args.ref, f"timeout ({type(error).__name__})") from None

    @staticmethod
    def _follow(lines: Iterator[dict[str, Any]], ref: str, context: Context) -> None:
        layers = Layers()
        for line in lines:
            if "error" in line:
                raise registry_errors.explain(ref, str(line["error"]))
            if layers.see(line):
                context.progress(sum(layers.done.values()), sum(layers.total.values()), unit="bytes", text="pulling")
            elif line.get("status") == "Extracting":
                context.progress(sum(layers.done.values()), sum(layers.total.values()), unit="bytes", text="extracting")


def platform_of(machine: Machine) -> str:
    """What images this host runs, as linux/arm64."""
    return f"linux/{ARCHITECTURES.get(machine.architecture, machine.architecture)}"


def platforms_of(distribution: dict[str, Any]) -> list[str]:
    """The platforms that a registry names for an image; empty when it names none."""
    found = {f"{one['os']}/{one['architecture']}" for one in distribution.get("Platforms") or ()}
    return sorted(found - {"unknown/unknown"})


def refuse_other_platforms(has: list[str], ref: str, wanted: str) -> None:
    """Raises Refused when the image has other platforms only: an engine can silently hand over one of them."""
    if has and wanted not in has:
        fix = "Use a tag with this platform; vllm/vllm-openai has both."
        raise Refused(f"{ref} has no {wanted}, only {', '.join(has)}.", fix=fix)


def _by_digest(ref: str) -> str:
    """repository@digest: a tag beside the digest is only for people."""
    name, _, digest = ref.partition("@")
    head, _, tail = name.rpartition(":")
    repository = head if head and "/" not in tail else name
    return f"{repository}@{digest}" if digest else name
