"""Modules that check the host, and the engine's flags, before a run changes anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright import units
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.engine import EngineName, get_engine
from sparkwright.engines.findings import Finding
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.containers import containers, ownership, replacement
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context, Module
from sparkwright.protocol.container import locked_ids
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import bounds, process_option_rules, security_option_rules
from sparkwright.visible import format_count

DISK_SPACE_FACTOR = 1.05
#: options of a recipe's container, each with the key of Docker's `info` that must be true for it
LIMIT_KEYS = (
    *(("memory", "MemoryLimit"), ("memory_swap", "SwapLimit")),
    *(("cpus", "CpuCfsQuota"), ("cpuset_cpus", "CPUSet")),
)


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """The result of one check."""

    name: str
    #: ok, bad or unknown
    verdict: str
    evidence: str
    fix: str = ""


class Preflight(Module["Preflight.Args"]):
    """Check that the host meets the requirements while the previous server is still serving. Changes nothing.

    Checks: the Docker Engine, the home folder in the plan, the image's platforms, disk space for the model's missing files
    and for a missing image (twice its download size, because it is unpacked), each plus 5 %, write permission for the
    model's folder, the server's port (and the program that uses it), the networks, devices, CPUs and limits of the container,
    the GPU. All findings are listed; if one is bad, the run is refused.

    Returns: checks (name, verdict, evidence).
    """

    @dataclass(frozen=True)
    class Args:
        container: dict[str, Any] | None = arg("the container, in the format of the variable `container`", default=None)
        image: dict[str, Any] | None = arg("the image's entry in spark.lock", default=None)
        model: dict[str, Any] | None = arg("the model's entry in spark.lock", default=None)
        model_dir: str = arg("the model's folder", default="")
        home: str = arg("the home folder in the plan", default="")
        report_only: bool = arg("report the findings without failing", default=False)

    def run(self, args: Args, context: Context) -> Result:
        findings = [finding for check in _CHECKS for finding in check(args, context)]
        checks = [
            {"name": finding.name, "verdict": finding.verdict, "evidence": finding.evidence} for finding in findings
        ]
        data: dict[str, Any] = {"checks": checks}
        bad_findings = [finding for finding in findings if finding.verdict == "bad"]
        if args.report_only or not (bad_findings or args.container):
            # without a container there are only a few findings
            evidence = [f"{finding.name}: {finding.evidence.rstrip('.')}" for finding in findings]
            return Result(msg="; ".join(evidence), data=data)
        if not bad_findings:
            return Result(msg=f"{format_count(len(findings), 'check')} passed", data=data)
        data["evidence"] = [
            f"{finding.name}: {finding.evidence} {finding.fix}".rstrip() for finding in bad_findings[1:]
        ]
        return Result(failed=True, exit=Exit.REFUSED, msg=bad_findings[0].evidence, fix=bad_findings[0].fix, data=data)


def _check_docker(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    facts = context.facts.get("docker") or {}
    try:
        version = facts.get("version") or context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield PreflightFinding("docker", "bad", error.message, error.fix)
        return
    yield PreflightFinding("docker", "ok", f"Docker {version}")


def _check_home(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    home = str(context.machine.home)
    if args.home and args.home != home and not context.machine.sandbox:
        evidence = f"the home directory here is {home}, the plan expects {args.home}."
        yield PreflightFinding("home", "bad", evidence, f"Add `home: {home}` to the host's file.")


def _check_platform(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    platforms = (args.image or {}).get("platforms") or []
    platform = machine_platform(context.machine)
    if platforms and platform not in platforms:
        evidence = f"the image is not available for {platform}, only for {', '.join(platforms)}."
        yield PreflightFinding("platform", "bad", evidence, "Use a tag with this platform.")
    elif platforms:
        yield PreflightFinding("platform", "ok", f"the image is available for {platform}")


def _check_disk(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    if not args.model or not args.model_dir:
        return
    folder = context.machine.expand(args.model_dir)
    missing_bytes = sum(
        file["size_bytes"] - _present_bytes(folder / file["path"], file["size_bytes"]) for file in args.model["files"]
    )
    free_bytes = context.machine.free_bytes(_existing_parent(folder))
    need_bytes = int(missing_bytes * DISK_SPACE_FACTOR)
    if need_bytes > free_bytes:
        evidence = (
            f"the model needs {units.format_size(need_bytes)} more in {folder}, {units.format_size(free_bytes)} free."
        )
        yield PreflightFinding("disk", "bad", evidence, "Free some space, or choose another `model.dir`.")
    else:
        evidence = f"{units.format_size(free_bytes)} free, {units.format_size(need_bytes)} to download"
        yield PreflightFinding("disk", "ok", evidence)
    existing_folder = _existing_parent(folder)
    # only for a download: the wake service has no write access to the model's folder
    if missing_bytes and not os.access(existing_folder, os.W_OK):
        fix = f"On the host: `sudo chown $USER {existing_folder}`."
        yield PreflightFinding("folder", "bad", f"no permission to write in {existing_folder}.", fix)


def _check_image_disk(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    """Check that twice the image's size is free: the download is kept until it is unpacked, and unpacking never shrinks it."""
    size_bytes = (args.image or {}).get("size_bytes")
    if not size_bytes or not args.container:
        return
    try:
        api: Any = context.docker().api
        if image_names.find(api, args.container["image"], locked_ids(args.image)):
            return
        docker_root = Path(str(api.info().get("DockerRootDir") or "/"))
        free_bytes = context.machine.free_bytes(_existing_parent(docker_root))
    except (SparkwrightError, OSError):
        return
    need_bytes = int(2 * size_bytes * DISK_SPACE_FACTOR)
    if need_bytes > free_bytes:
        space = f"{units.format_size(need_bytes)} or more in {docker_root}, {units.format_size(free_bytes)} free"
        evidence = f"the image needs {space}."
        yield PreflightFinding("image disk", "bad", evidence, "`invoke images.prune` lists unused images.")
    else:
        evidence = f"{units.format_size(free_bytes)} free, {units.format_size(size_bytes)} to pull"
        yield PreflightFinding("image disk", "ok", evidence)


def _check_port(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    spec = args.container
    if not spec or not spec["ports"]:
        return
    port = int(spec["ports"][0].split(":")[-2])
    try:
        server = replacement.find_current(context, spec["name"])
        is_used_by_server = bool(server) and server["State"]["Running"] and containers.has_port_binding(server, port)
        holder = "" if is_used_by_server else containers.describe_port_holder(context.docker(), port)
        rank_container = containers.rank_container_name(context.docker(), holder) if holder else ""
        is_ours = holder.startswith(containers.CONTAINER_PREFIX) and _is_ours(holder, context)
    except SparkwrightError:
        return
    if not holder:
        port_status = "in use by this server" if is_used_by_server else "free"
        yield PreflightFinding("port", "ok", f"port {port} is {port_status}")
        return
    on_host_network = (
        process_option_rules.parse_network(spec.get("network", ""))[0] == process_option_rules.HOST_NETWORK
    )
    port_settings = ["the engine's flag `port` in the recipe"] if on_host_network else []
    fix = (
        containers.fix_to_stop_rank(rank_container)
        if rank_container
        else containers.fix_to_free_port(holder, *port_settings, is_ours=is_ours)
    )
    yield PreflightFinding("port", "bad", f"port {port} is in use by {holder}.", fix)


def _is_ours(holder: str, context: Context) -> bool:
    container = containers.inspect(context.docker(), holder.removeprefix(containers.CONTAINER_PREFIX))
    return container is not None and ownership.is_ours(context, container)


def _check_networks(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    spec = args.container or {}
    names = process_option_rules.user_networks([spec.get("network", ""), *spec.get("networks", ())])
    if not names:
        return
    try:
        api: Any = context.docker().api
        existing_networks = {str(network.get("Name")) for network in api.networks()}
    except SparkwrightError:
        return
    for name in names:
        if name in existing_networks:
            yield PreflightFinding("network", "ok", f"the network {name} exists")
        else:
            fix = f"On the host: `docker network create {name}`."
            yield PreflightFinding("network", "bad", f"there is no network {name}.", fix)


def _check_devices(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    if context.machine.sandbox:
        return
    for device in (args.container or {}).get("devices") or ():
        path = Path(security_option_rules.device_mapping(device)["PathOnHost"])
        try:
            path.stat()
        except PermissionError:
            yield PreflightFinding("device", "unknown", f"no permission to see {path}")
        except OSError:
            evidence = f"there is no device {path} on this host."
            yield PreflightFinding("device", "bad", evidence, "Correct `container.devices`.")
        else:
            yield PreflightFinding("device", "ok", f"{path} exists")


def _check_limits(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    """Check limits that the Docker Engine would refuse, or ignore with a mere warning."""
    spec = args.container or {}
    limits = [(name, info_key) for name, info_key in LIMIT_KEYS if spec.get(name)]
    if not limits:
        return
    try:
        info: dict[str, Any] = context.docker().api.info()
    except SparkwrightError:
        return
    fix = "Correct the recipe's `container`."
    for name, info_key in limits:
        if info.get(info_key) is False:
            evidence = f"this host's kernel does not support the limit `{name}`."
            yield PreflightFinding("limit", "bad", evidence, f"Remove `container.{name}`.")
    cpu_count = info.get("NCPU")
    if not isinstance(cpu_count, int):
        return
    if spec.get("cpus", 0) > cpu_count:
        evidence = f"`cpus: {spec['cpus']:g}` is more than the {cpu_count} CPUs of this host."
        yield PreflightFinding("limit", "bad", evidence, fix)
    missing_cpus = [index for index in process_option_rules.parse_cpuset(spec.get("cpuset_cpus")) if index >= cpu_count]
    if missing_cpus:
        evidence = f"this host has no CPU {missing_cpus[0]}, only 0 to {cpu_count - 1}."
        yield PreflightFinding("limit", "bad", evidence, fix)


def _check_gpu(args: Preflight.Args, context: Context) -> Iterator[PreflightFinding]:
    gpu = context.facts.get("gpu")
    if gpu:
        yield PreflightFinding("gpu", "ok", f"{gpu['name']}, driver {gpu['driver']}")
    elif args.container and args.container["gpus"]:
        yield PreflightFinding("gpu", "unknown", "nvidia-smi found no GPU")


def _present_bytes(path: Path, size_bytes: int) -> int:
    """Return the size of a file that need not be downloaded again; 0 if it is missing or has another size."""
    try:
        return size_bytes if path.stat().st_size == size_bytes else 0
    except OSError:
        return 0


def _existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists and is visible to this user."""
    return next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110 - it never raises


_CHECKS = (
    _check_docker,
    _check_home,
    _check_platform,
    _check_disk,
    _check_image_disk,
    _check_port,
    _check_networks,
    _check_devices,
    _check_limits,
    _check_gpu,
)


class Lint(Module["Lint.Args"]):
    """Check that the engine in the image will start with these flags for this model. Changes nothing.

    The laptop has already checked the flags against spark.lock and the option tables. On the host, the version and options
    come from the image itself, and the model's config.json is available. If there is an error, the run is refused while the
    previous server is still serving.

    Returns: engine_version (null if unknown), listed (number of options that the image lists), options (their differences
    from a known release; null if it lists none), findings.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the image, as repository:tag@digest")
        flags: dict[str, Any] = arg("the flags of the engine, under their own names")
        model_dir: str = arg("the model's folder on the host", default="")
        platform: Literal["gb10", "ascend"] = arg("platform whose rules apply to the flags", default="gb10")
        model_by_flag: bool = arg("has no effect; accepted for older ejected playbooks", default=True)
        env: dict[str, str] = arg("the container's environment", default_factory=dict)
        engine: EngineName = arg("the engine in the image", default="vllm")
        network: str = arg(
            "the container's network; on the host's network a server may listen on loopback only", default=""
        )
        image_ids: list[str] = arg(
            "ids that identify the image; empty: the ids recorded at its pull", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        engine = get_engine(args.engine)
        image = image_names.read_engine_image(context, args.image, args.image_ids, engine)
        if image is None:
            data: dict[str, Any] = {"engine_version": None, "findings": []}
            return Result(msg="not checked: the image is not on the host yet", data=data)
        container = {"network": args.network}
        request = ServerRequest(args.flags, args.image, args.platform, args.env, container=container)
        model = _read_config(args, context)
        findings = engine.advice.check(request, model, engine.advice.version(image.version), image.all_options)
        rows = [finding.to_json() for finding in findings]
        fields = {"engine_version": image.version, "listed": len(image.all_options), "options": image.options}
        data = {**fields, "findings": rows}
        errors = [finding for finding in findings if finding.severity == "error"]
        if not errors:
            message = f"{engine.title} {image.version or 'of unknown version'}, {engine.advice.kind(model).description}"
            return Result(msg="; ".join([message, *_format_warnings(findings)]), data=data)
        fixes = "; or ".join(way.text for way in errors[0].ways_out)
        fix = f"{fixes[:1].upper()}{fixes[1:]}. Why: `invoke explain {errors[0].rule}`." if fixes else ""
        data["evidence"] = [f"{finding.rule}: {finding.sentence}" for finding in errors[1:]]
        return Result(failed=True, exit=Exit.REFUSED, msg=errors[0].sentence, fix=fix, data=data)


def _format_warnings(findings: list[Finding]) -> list[str]:
    warnings = [finding.sentence.rstrip(".") for finding in findings if finding.severity == "warning"]
    heading = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings, first"
    return [f"{heading}: {warnings[0]}"] if warnings else []


def _read_config(args: Lint.Args, context: Context) -> dict[str, Any]:
    try:
        return bounds.read_config(context.machine.expand(args.model_dir) / "config.json")
    except (OSError, ValueError):
        return {}
