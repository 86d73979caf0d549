"""Modules that report on a server: its diagnosis, its settings, and whether it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sparkwright.doctor import diagnosis
from sparkwright.doctor.diagnosis.server_state import RecipeFacts
from sparkwright.engines.compile_caches import CACHE_MOUNT, own_variables
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.health.check import DOCKER_TIMEOUT_S
from sparkwright.host.containers import containers, inspection, server_key
from sparkwright.host.containers.running_server import RunningContainer
from sparkwright.host.images.image_names import digests_of
from sparkwright.host.module import Context, Module
from sparkwright.host.records import verified_states
from sparkwright.host.runs.context import DockerEngine
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.protocol.container import OWN_LABELS
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import secret_patterns
from sparkwright.trust.image_name import digest_of, with_digest, without_digest
from sparkwright.units import GIB
from sparkwright.visible import join_first


class Diagnose(Module["Diagnose.Args"]):
    """Diagnose a server: what is wrong, in one sentence, and the ranked causes, each with evidence and fix.

    It inspects what is running: the container, its exit code and last line, the engine's log, /health, the counters, one
    generated token, then a measured stream together with the GPU's clock and power, memory, swap, disk, Ollama, and the
    flags of the running command by the rules of `invoke lint`. It needs neither spark.lock nor a registry and changes
    nothing. A server that others use, or a host with a run in progress, is not measured, and the summary says so.

    Returns: state, summary, fix, exit, causes (cause, verdict: found, possible, unknown, noted or excluded, evidence, fix),
    tok_per_s, expected_tok_per_s, expected_by, container, gpu, sandbox.

    Fails if something is wrong; inconclusive if that is unknown.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        container: str = arg("the container's name, for a host where nothing was verified", default="")
        base_url: str = arg("where the server answers, if its container publishes no port", default="")
        model: str = arg("the served name, if neither the host nor the server knows it", default="")
        model_id: str = arg("the model's name on the hub", default="")
        tok_per_s: float | None = arg(
            "expected rate of one stream if there is no baseline; null: unknown", default=None
        )
        platform: Literal["gb10", "ascend"] = arg("platform whose rules apply to the flags", default="gb10")
        token_s: float = arg("how long a token may take, seconds; 0: as in health checks", default=0.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        secret = context.secrets.get(args.api_key_secret)
        values = {name: getattr(args, name) for name in ("container", "base_url", "model", "model_id", "tok_per_s")}
        facts = RecipeFacts(
            **values, platform=args.platform, token_s=args.token_s, key=secret.reveal() if secret else ""
        )
        # an engine that does not answer is a cause, and soon
        quick_context = replace(context, engine=DockerEngine(context.machine, timeout_s=DOCKER_TIMEOUT_S))
        report = {**diagnosis.diagnose(quick_context, facts), "sandbox": context.machine.sandbox}
        code = Exit(report["exit"])
        return Result(failed=code is not Exit.OK, exit=code, msg=report["summary"], fix=report["fix"], data=report)


class Serving(Module["Serving.Args"]):
    """Check that this host serves now: its container runs and generates one token. Changes nothing and never fails.

    The container name of the last verified state takes precedence over `name`. A server that only answers /health does not
    serve.

    Returns: serving, verified (it is the container of the last verified state), why (what is missing, or the evidence).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name, for a host where nothing was verified yet", default="")
        timeout_s: float = arg("how long the token may take, seconds", default=10.0)

    def run(self, args: Args, context: Context) -> Result:
        good = verified_states.load_last(context.state)
        name = str((good.get("spec") or {}).get("name") or args.name)
        if not name:
            return _serving_result(False, False, "nothing was ever deployed here")
        try:
            container = containers.inspect(context.docker(), name)
            if container is None or not container["State"]["Running"]:
                return _serving_result(
                    False, False, f"{name} is not running" if container else f"there is no container {name}"
                )
            url = containers.url_of(container)
            if not url:
                return _serving_result(False, False, f"{name} publishes no port")
            health = VerifyHealth.Args(base_url=url, tokens=1, timeout_s=args.timeout_s)
            answer = VerifyHealth().run(health, context)
        except SparkwrightError as error:
            return _serving_result(False, False, str(error))
        return _serving_result(not answer.failed, container["Id"] == good.get("container_id"), answer.msg)


def _serving_result(serving: bool, verified: bool, why: str) -> Result:
    return Result(msg=why, data={"serving": serving, "verified": verified, "why": why})


#: replaces a secret, which does not leave the host
MASK = "***"
#: Docker's default
DEFAULT_SHM_BYTES = 64 * 2**20
#: keys of HostConfig, by a recipe's names
LIST_OPTIONS = {
    "cap_add": "CapAdd",
    "cap_drop": "CapDrop",
    "security_opt": "SecurityOpt",
    "group_add": "GroupAdd",
    "extra_hosts": "ExtraHosts",
    "dns": "Dns",
}
#: networks of a container that names none
DEFAULT_NETWORKS = ("", "default", "bridge")
MAX_NAMES = 8


class ContainerSettings(Module["ContainerSettings.Args"]):
    """Report the settings that a running container was created with, in the terms of a recipe. Changes nothing.

    Values that are named or look like secrets do not leave the host, whether in variables, options, labels, shell text or
    JSON; their names do.

    Returns: name, image, entrypoint and command (as created; the entrypoint is null if it is the image's), env (without the
    image's), ports, volumes, network, options (of `container` in a recipe), running.

    Fails if there is no such container, naming the running ones.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container")

    def run(self, args: Args, context: Context) -> Result:
        client = context.docker()
        inspected = containers.inspect(client, args.name)
        if inspected is None:
            names = [str(row["Names"][0]).lstrip("/") for row in containers.list_running(context) if row.get("Names")]
            running = f"Running: {join_first(sorted(names), MAX_NAMES)}." if names else "None is running."
            raise Refused(f"there is no container {args.name}.", fix=running)
        image = containers.image_of(client, inspected)
        config, host_config = inspected["Config"], inspected["HostConfig"]
        image_config = image.get("Config") or {}
        inherited = inspection.parse_env(image_config.get("Env"))
        variables = inspection.parse_env(config.get("Env"))
        caches = own_variables(variables)
        env = {k: v for k, v in variables.items() if inherited.get(k) != v and k not in caches}
        entrypoint = config.get("Entrypoint") or []
        data = {
            "name": RunningContainer(inspected, image).name,
            "image": _image_reference(config, image),
            "entrypoint": None if entrypoint == (image_config.get("Entrypoint") or []) else entrypoint,
            "program": entrypoint,
            "command": config.get("Cmd") or [],
            "env": env,
            "ports": _format_ports(host_config.get("PortBindings") or {}),
            "volumes": [bind for bind in host_config.get("Binds") or () if f":{CACHE_MOUNT}" not in bind],
            "network": ""
            if (host_config.get("NetworkMode") or "") in DEFAULT_NETWORKS
            else str(host_config["NetworkMode"]),
            "options": _changed_options(host_config, config, image_config),
            "running": bool(inspected["State"]["Running"]),
        }
        return Result(msg=f"{data['name']}: {data['image']}", data=secret_patterns.mask_value(data, mask=MASK))


def _image_reference(config: Mapping[str, Any], image: dict[str, Any]) -> str:
    """Return the image as it was named, with its registry's digest if it has one."""
    given_name = str(config.get("Image") or "")
    tag = (
        next(iter(image.get("RepoTags") or ()), "") if given_name.startswith("sha256:") else without_digest(given_name)
    )
    return with_digest(tag or given_name, digest_of(given_name) or next(iter(digests_of(image)), ""))


def _format_ports(bindings: Mapping[str, Any]) -> list[str]:
    """Return the ports as Docker writes them: "8000:8000", "127.0.0.1:8000:8000"."""
    ports = []
    for inside, rows in bindings.items():
        for row in rows or ():
            address = str(row.get("HostIp") or "")
            prefix = f"[{address}]:" if ":" in address else f"{address}:" if address not in ("", "0.0.0.0") else ""
            ports.append(f"{prefix}{row['HostPort']}:{inside.removesuffix('/tcp')}")
    return ports


def _changed_options(
    host_config: Mapping[str, Any], config: Mapping[str, Any], image_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that differ from those of a plain `docker run`."""
    options: dict[str, Any] = {
        name: list(host_config[key]) for name, key in LIST_OPTIONS.items() if host_config.get(key)
    }
    restart = str((host_config.get("RestartPolicy") or {}).get("Name") or "no")
    options["restart"] = restart
    options["gpus"] = _format_gpus(host_config.get("DeviceRequests") or ())
    options["ipc"] = str(host_config.get("IpcMode") or "")
    if (size := host_config.get("ShmSize") or 0) not in (0, DEFAULT_SHM_BYTES):
        options["shm_size"] = _format_size(size)
    if rows := host_config.get("Ulimits"):
        options["ulimits"] = {row["Name"]: _format_ulimit(row) for row in rows}
    if rows := host_config.get("Devices"):
        options["devices"] = [_format_device(row) for row in rows]
    if host_config.get("Privileged"):
        options["privileged"] = True
    if memory := host_config.get("Memory"):
        options["memory"] = _format_size(memory)
    for name, key in (("user", "User"), ("working_dir", "WorkingDir")):
        if config.get(key) and config.get(key) != image_config.get(key):
            options[name] = str(config[key])
    labels = {k: v for k, v in (config.get("Labels") or {}).items() if (image_config.get("Labels") or {}).get(k) != v}
    if user_labels := {k: v for k, v in labels.items() if not k.startswith(OWN_LABELS)}:
        options["labels"] = user_labels
    return options


def _format_gpus(rows: Iterable[Mapping[str, Any]]) -> str:
    for row in rows:
        ids = row.get("DeviceIDs") or ()
        return f"device={','.join(ids)}" if ids else "all" if row.get("Count") == -1 else str(row.get("Count") or "all")
    return ""


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes // GIB}gb" if size_bytes % GIB == 0 else f"{size_bytes}b"


def _format_ulimit(row: Mapping[str, Any]) -> str:
    return str(row["Soft"]) if row["Soft"] == row["Hard"] else f"{row['Soft']}:{row['Hard']}"


def _format_device(row: Mapping[str, Any]) -> str:
    source, target = str(row["PathOnHost"]), str(row["PathInContainer"])
    return source if source == target else f"{source}:{target}"
