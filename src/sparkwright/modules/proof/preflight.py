"""Checks before a run changes anything: of the host, and of the recipe by the model's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright import units
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.engine import Name, of
from sparkwright.engines.findings import Finding
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.containers import container_labels, containers, replacement
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context, Module
from sparkwright.protocol.container import locked_ids
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import bounds, process_words, security_words
from sparkwright.visible import count

MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """The result of one check."""

    name: str
    #: ok, bad or unknown
    verdict: str
    evidence: str
    fix: str = ""


class Preflight(Module["Preflight.Args"]):
    """Check everything that can be known in advance while the previous server still serves. Changes nothing.

    Checks: the Docker socket, the planned home folder, the image's platforms against this host, disk space for image and
    model (their size + 5 %, less what exists), the server's port (and what uses it), the networks, devices, CPUs and limits
    of the container, the GPU. All findings are listed; a bad one refuses the run.

    Returns: checks (name, verdict, evidence).
    """

    @dataclass(frozen=True)
    class Args:
        container: dict[str, Any] | None = arg("the container, as `container` in scope", default=None)
        image: dict[str, Any] | None = arg("the lock's entry of the image", default=None)
        model: dict[str, Any] | None = arg("the lock's entry of the model", default=None)
        model_dir: str = arg("the model's folder", default="")
        home: str = arg("the home folder that the plan expects", default="")
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


def _engine(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    known = context.facts.get("docker") or {}
    try:
        version = known.get("version") or context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield PreflightFinding("docker", "bad", error.message, error.fix)
        return
    yield PreflightFinding("docker", "ok", f"Docker {version}")


def _home(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    here = str(context.machine.home)
    if args.home and args.home != here and not context.machine.sandbox:
        evidence = f"the home directory here is {here}, the plan expects {args.home}."
        yield PreflightFinding("home", "bad", evidence, f"Add `home: {here}` to the host's file.")


def _platform(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    has = (args.image or {}).get("platforms") or []
    platform = machine_platform(context.machine)
    if has and platform not in has:
        evidence = f"the image has no {platform}, only {', '.join(has)}."
        yield PreflightFinding("platform", "bad", evidence, "Use a tag with this platform.")
    elif has:
        yield PreflightFinding("platform", "ok", f"the image has {platform}")


def _disk(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
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
        yield PreflightFinding("disk", "bad", evidence, "Free some space, or choose another `model.dir`.")
    else:
        yield PreflightFinding("disk", "ok", f"{units.size(free)} free, {units.size(need)} to download")
    place = _standing(folder)
    # the wake service, which downloads nothing, may only read the model's folder
    if missing and not os.access(place, os.W_OK):
        fix = f"On the host: `sudo chown $USER {place}`."
        yield PreflightFinding("folder", "bad", f"no permission to write in {place}.", fix)


def _image_disk(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
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
        yield PreflightFinding("image disk", "bad", evidence, "`invoke images.prune` lists unused images.")
    else:
        yield PreflightFinding("image disk", "ok", f"{units.size(free)} free, {units.size(size)} to pull")


def _port(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
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
        host_network = process_words.parts(spec.get("network", ""))[0] == process_words.HOST
        ways = ["the engine's flag `port` in the recipe"] if host_network else []
        fix = containers.to_stop_a_rank(rank) if rank else containers.to_free_a_port(holder, *ways, ours=replaceable)
        yield PreflightFinding("port", "bad", f"port {port} is in use by {holder}.", fix)
    else:
        yield PreflightFinding("port", "ok", f"port {port} is {'held by this server' if ours else 'free'}")


def _ours(holder: str, context: Context) -> bool:
    """Return True if sparkwright created the container that holds a port."""
    found = containers.inspect(context.docker(), holder.removeprefix(containers.CONTAINER))
    return found is not None and container_labels.ours(context, found)


def _networks(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    spec = args.container or {}
    wanted = process_words.own_names([spec.get("network", ""), *spec.get("networks", ())])
    if not wanted:
        return
    try:
        api: Any = context.docker().api
        found = {str(network.get("Name")) for network in api.networks()}
    except SparkwrightError:
        return
    for name in wanted:
        if name in found:
            yield PreflightFinding("network", "ok", f"the network {name} is there")
        else:
            yield PreflightFinding(
                "network", "bad", f"there is no network {name}.", f"On the host: `docker network create {name}`."
            )


def _devices(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    if context.machine.sandbox:
        return
    for text in (args.container or {}).get("devices") or ():
        path = Path(security_words.device_row(text)["PathOnHost"])
        try:
            path.stat()
        except PermissionError:
            yield PreflightFinding("device", "unknown", f"no permission to see {path}")
        except OSError:
            yield PreflightFinding(
                "device", "bad", f"there is no device {path} on this host.", "Correct `container.devices`."
            )
        else:
            yield PreflightFinding("device", "ok", f"{path} is there")


#: key of Docker's `info` that must be true for an option
_LIMITS = (("memory", "MemoryLimit"), ("memory_swap", "SwapLimit"), ("cpus", "CpuCfsQuota"), ("cpuset_cpus", "CPUSet"))


def _limits(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
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
            yield PreflightFinding(
                "limit", "bad", f"this host's kernel has no limit for `{name}`.", f"Remove `container.{name}`."
            )
    cpus = about.get("NCPU")
    if not isinstance(cpus, int):
        return
    if spec.get("cpus", 0) > cpus:
        yield PreflightFinding(
            "limit", "bad", f"`cpus: {spec['cpus']:g}` is more than the {cpus} CPUs of this host.", fix
        )
    missing = [index for index in process_words.cpuset_alike(spec.get("cpuset_cpus")) if index >= cpus]
    if missing:
        yield PreflightFinding("limit", "bad", f"this host has no CPU {missing[0]}: it has 0 to {cpus - 1}.", fix)


def _gpu(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    gpu = context.facts.get("gpu")
    if gpu:
        yield PreflightFinding("gpu", "ok", f"{gpu['name']}, driver {gpu['driver']}")
    elif args.container and args.container["gpus"]:
        yield PreflightFinding("gpu", "unknown", "nvidia-smi found no GPU")


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


class Lint(Module["Lint.Args"]):
    """Check that the engine in the image will start with these flags for this model. Changes nothing.

    The laptop has already checked them against the lock and the tables; here the image itself reports its version and its
    options, and the model's own config.json is available. An error refuses the run while the previous server still serves.

    Returns: engine_version (null if unknown), listed (how many options the image listed), options (how they differ from
    those of a known release; null if it listed none), findings.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the image, as repository:tag@digest")
        flags: dict[str, Any] = arg("the flags of the engine, under their own names")
        model_dir: str = arg("the model's folder on the host", default="")
        platform: Literal["gb10", "ascend"] = arg("platform whose rules apply to the flags", default="gb10")
        model_by_flag: bool = arg("only for older ejected playbooks; without effect", default=True)
        env: dict[str, str] = arg("the container's environment", default_factory=dict)
        engine: Name = arg("the engine in the image", default="vllm")
        network: str = arg(
            "the container's network; on the host's network a server may listen on loopback only", default=""
        )
        image_ids: list[str] = arg(
            "the Ids that identify the image; default: those recorded at a pull", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        engine = of(args.engine)
        image = image_names.ask(context, args.image, args.image_ids, engine)
        if image is None:
            data: dict[str, Any] = {"engine_version": None, "findings": []}
            return Result(msg="not checked: the image is not on the host yet", data=data)
        box = {"network": args.network}
        request = ServerRequest(args.flags, args.image, args.platform, args.env, container=box)
        model = _config(args, context)
        found = engine.advice.check(request, model, engine.advice.version(image.version), image.listed)
        rows = [finding.to_json() for finding in found]
        about = {"engine_version": image.version, "listed": len(image.listed), "options": image.options}
        data = {**about, "findings": rows}
        bad = [finding for finding in found if finding.severity == "error"]
        if not bad:
            message = f"{engine.title} {image.version or 'of unknown version'}, {engine.advice.kind(model).sentence}"
            return Result(msg="; ".join([message, *_warnings(found)]), data=data)
        ways = "; or ".join(way.text for way in bad[0].ways_out)
        more = [f"{finding.rule}: {finding.sentence}" for finding in bad[1:]]
        fix = f"{ways[:1].upper()}{ways[1:]}. Why: `invoke explain {bad[0].rule}`." if ways else ""
        return Result(failed=True, exit=Exit.REFUSED, msg=bad[0].sentence, fix=fix, data={**data, "evidence": more})


def _warnings(found: list[Finding]) -> list[str]:
    warned = [finding.sentence.rstrip(".") for finding in found if finding.severity == "warning"]
    count = "1 warning" if len(warned) == 1 else f"{len(warned)} warnings, first"
    return [f"{count}: {warned[0]}"] if warned else []


def _config(args: Lint.Args, context: Context) -> dict[str, Any]:
    try:
        return bounds.config_of(context.machine.expand(args.model_dir) / "config.json")
    except (OSError, ValueError):
        return {}
