from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.containers import containers, ownership, replacement
from sparkwright.host.images import image_names
from sparkwright.host.images.platform import platform_of
from sparkwright.host.module import Context, Module
from sparkwright.protocol.container import locked_ids
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import network_words, process_words, security_words
from sparkwright.visible import count

MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    #: ok, bad or unknown
    verdict: str
    evidence: str
    fix: str = ""


class Preflight(Module["Preflight.Args"]):
    """Everything that can be known in advance is checked while the previous server still serves. Nothing is changed.

    Looks at: the Docker socket, the planned home folder, the image's platforms against this host, room on the disk for image
    and model (their size + 5 %, less what is there), the server's port (taken by whom), the networks, devices, CPUs and limits
    of the container, the GPU. All findings are listed; one that is bad refuses the run.

    Returns: checks (name, verdict, evidence).
    """

    @dataclass(frozen=True)
    class Args:
        container: dict[str, Any] | None = arg("the container, as in scope", default=None)
        image: dict[str, Any] | None = arg("the lock's entry of the image", default=None)
        model: dict[str, Any] | None = arg("the lock's entry of the model", default=None)
        model_dir: str = arg("the model's folder", default="")
        home: str = arg("the home folder the plan counts on", default="")
        report_only: bool = arg("report only, never fail", default=False)

    def run(self, args: Args, context: Context) -> Result:
        found = [finding for check in _CHECKS for finding in check(args, context)]
        data: dict[str, Any] = {}
        data["checks"] = [
            {"name": finding.name, "verdict": finding.verdict, "evidence": finding.evidence} for finding in found
        ]
        bad = [finding for finding in found if finding.verdict == "bad"]
        if args.report_only:
            return Result(msg="; ".join(f"{finding.name}: {finding.evidence}" for finding in found), data=data)
        if not bad:
            return Result(msg=f"{count(len(found), 'check')} passed", data=data)
        data["evidence"] = [f"{finding.name}: {finding.evidence} {finding.fix}".rstrip() for finding in bad[1:]]
        return Result(failed=True, exit=Exit.REFUSED, msg=bad[0].evidence, fix=bad[0].fix, data=data)


def _engine(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    known = context.facts.get("docker") or {}
    try:
        version = known.get("version") or context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield Finding("docker", "bad", error.message, error.fix)
        return
    yield Finding("docker", "ok", f"Docker {version}")


def _home(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    here = str(context.machine.home)
    if args.home and args.home != here and not context.machine.sandbox:
        evidence = f"the home directory here is {here}, the plan expects {args.home}."
        yield Finding("home", "bad", evidence, f"Add `home: {here}` to the host's file.")


def _platform(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    has = (args.image or {}).get("platforms") or []
    platform = platform_of(context.machine)
    if has and platform not in has:
        evidence = f"the image has no {platform}, only {', '.join(has)}."
        yield Finding("platform", "bad", evidence, "Use a tag with this platform.")
    elif has:
        yield Finding("platform", "ok", f"the image has {platform}")


def _disk(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    if not args.model or not args.model_dir:
        return
    folder = context.machine.expand(args.model_dir)
    missing = sum(
        file["size_bytes"] - _there(folder / file["path"], file["size_bytes"]) for file in args.model["files"]
    )
    free = context.machine.free_bytes(_standing(folder))
    need = int(missing * MARGIN)
    if need > free:
        evidence = f"the model needs {units.size(need)} more in {folder}, {units.size(free)} free."
        yield Finding("disk", "bad", evidence, "Free some space, or choose another `model.dir`.")
    else:
        yield Finding("disk", "ok", f"{units.size(free)} free, {units.size(need)} to download")
    place = _standing(folder)
    if not os.access(place, os.W_OK):
        fix = f"On the host: `sudo chown $USER {place}`."
        yield Finding("folder", "bad", f"no permission to write in {place}.", fix)


def _image_disk(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    """Check the space for the image.

    A pull keeps what it downloads until it is unpacked, and what is unpacked is never smaller: less is sure to fail.
    """
    size = (args.image or {}).get("size_bytes")
    if not size or not args.container:
        return
    try:
        api: Any = context.docker().api
        if image_names.find(api, args.container["image"], locked_ids(args.image)):
            return
        root = Path(str(api.info().get("DockerRootDir") or "/"))
        free = context.machine.free_bytes(_standing(root))
    except (SparkwrightError, OSError):
        return
    need = int(2 * size * MARGIN)
    if need > free:
        evidence = f"the image needs {units.size(need)} or more in {root}, {units.size(free)} free."
        yield Finding("image disk", "bad", evidence, "`invoke images.prune` lists unused images.")
    else:
        yield Finding("image disk", "ok", f"{units.size(free)} free, {units.size(size)} to pull")


def _port(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    spec = args.container
    if not spec or not spec["ports"]:
        return
    port = int(spec["ports"][0].split(":")[-2])
    try:
        own = replacement.current(context, spec["name"])
        ours = bool(own) and own["State"]["Running"] and containers.publishes(own, port)
        holder = "" if ours else containers.who_listens(context.docker(), port)
        rank = containers.rank_of(context.docker(), holder) if holder else ""
        replaceable = holder.startswith(containers.CONTAINER) and _ours(holder, context)
    except SparkwrightError:
        return
    if holder:
        host_network = network_words.parts(spec.get("network", ""))[0] == network_words.HOST
        ways = ["the engine's flag `port` in the recipe"] if host_network else []
        fix = containers.to_stop_a_rank(rank) if rank else containers.to_free_a_port(holder, *ways, ours=replaceable)
        yield Finding("port", "bad", f"port {port} is in use by {holder}.", fix)
    else:
        yield Finding("port", "ok", f"port {port} is {'held by this server' if ours else 'free'}")


def _ours(holder: str, context: Context) -> bool:
    """Return True if sparkwright created the container that holds a port."""
    found = containers.inspect(context.docker(), holder.removeprefix(containers.CONTAINER))
    return found is not None and ownership.ours(context, found)


def _networks(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    spec = args.container or {}
    wanted = network_words.own_names([spec.get("network", ""), *spec.get("networks", ())])
    if not wanted:
        return
    try:
        api: Any = context.docker().api
        found = {str(network.get("Name")) for network in api.networks()}
    except SparkwrightError:
        return
    for name in wanted:
        if name in found:
            yield Finding("network", "ok", f"the network {name} is there")
        else:
            yield Finding(
                "network", "bad", f"there is no network {name}.", f"On the host: `docker network create {name}`."
            )


def _devices(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    if context.machine.sandbox:
        return
    for text in (args.container or {}).get("devices") or ():
        path = Path(security_words.device_row(text)["PathOnHost"])
        try:
            path.stat()
        except PermissionError:
            yield Finding("device", "unknown", f"no permission to see {path}")
        except OSError:
            yield Finding("device", "bad", f"there is no device {path} on this host.", "Correct `container.devices`.")
        else:
            yield Finding("device", "ok", f"{path} is there")


#: key of Docker's `info` that must be true for an option
_LIMITS = (("memory", "MemoryLimit"), ("memory_swap", "SwapLimit"), ("cpus", "CpuCfsQuota"), ("cpuset_cpus", "CPUSet"))


def _limits(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    """Check limits that the engine refuses, or ignores with a warning that nobody sees."""
    spec = args.container or {}
    limits = [(name, word) for name, word in _LIMITS if spec.get(name)]
    if not limits:
        return
    try:
        about: dict[str, Any] = context.docker().api.info()
    except SparkwrightError:
        return
    fix = "Correct the recipe's `container`."
    for name, word in limits:
        if about.get(word) is False:
            yield Finding(
                "limit", "bad", f"this host's kernel has no limit for `{name}`.", f"Remove `container.{name}`."
            )
    cpus = about.get("NCPU")
    if not isinstance(cpus, int):
        return
    if spec.get("cpus", 0) > cpus:
        yield Finding("limit", "bad", f"`cpus: {spec['cpus']:g}` is more than the {cpus} CPUs of this host.", fix)
    missing = [index for index in process_words.cpuset_alike(spec.get("cpuset_cpus")) if index >= cpus]
    if missing:
        yield Finding("limit", "bad", f"this host has no CPU {missing[0]}: it has 0 to {cpus - 1}.", fix)


def _gpu(args: Preflight.Args, context: Context) -> Iterator[Finding]:
    gpu = context.facts.get("gpu")
    if gpu:
        yield Finding("gpu", "ok", f"{gpu['name']}, driver {gpu['driver']}")
    elif args.container and args.container["gpus"]:
        yield Finding("gpu", "unknown", "nvidia-smi found no GPU")


def _there(path: Path, size_bytes: int) -> int:
    """Return how many bytes of a file need not be downloaded again: all of them or none."""
    try:
        return size_bytes if path.stat().st_size == size_bytes else 0
    except OSError:
        return 0


def _standing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists and is visible to this user."""
    return next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110 - it never raises


_CHECKS = (_engine, _home, _platform, _disk, _image_disk, _port, _networks, _devices, _limits, _gpu)
