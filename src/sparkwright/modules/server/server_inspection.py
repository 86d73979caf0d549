"""Modules that report on a server: its diagnosis, its settings, and whether it is serving requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sparkwright.doctor import diagnosis
from sparkwright.doctor.diagnosis.server_state import RecipeFacts
from sparkwright.engines.compile_caches import CACHE_MOUNT, find_cache_variables
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.health.check import DOCKER_TIMEOUT_S
from sparkwright.host.containers import containers, inspection, option_reader, server_key
from sparkwright.host.containers.running_server import RunningContainer
from sparkwright.host.images.image_names import digests_of
from sparkwright.host.module import Context, Module
from sparkwright.host.records import verified_states
from sparkwright.host.runs.context import DockerEngine
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import secret_patterns
from sparkwright.trust.image_name import digest_of, with_digest, without_digest
from sparkwright.visible import join_first


class Diagnose(Module["Diagnose.Args"]):
    """Diagnose a server: a one-sentence summary, and the possible causes, ranked, each with evidence and fix.

    Inspects the container with its exit code and last line of output, the engine's log, /health, the counters, memory,
    swap, disk and Ollama, and lints the running command's flags with the rules of `invoke lint`. Then requests one token,
    and measures one stream while sampling the GPU's clock and power. Needs neither spark.lock nor a registry, and changes
    nothing. Throughput is not measured while other requests are running or a run is in progress on the host; the summary
    says so.

    Returns: state, summary, fix, exit, causes (cause; verdict: found, possible, unknown, noted or excluded; evidence; fix),
    tok_per_s, expected_tok_per_s, expected_by (the source of the expectation), container, gpu, sandbox.

    Fails if a problem is found; inconclusive if that cannot be determined.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        container: str = arg("the container's name, for a host where nothing has been verified", default="")
        base_url: str = arg("the server's URL, if its container publishes no port", default="")
        model: str = arg("the served name, if neither the host's records nor the server has it", default="")
        model_id: str = arg("the model's name on the hub", default="")
        tok_per_s: float | None = arg(
            "expected rate of one stream if there is no baseline; null: unknown", default=None
        )
        platform: Literal["gb10", "ascend"] = arg("platform, which selects the rules for the flags", default="gb10")
        token_s: float = arg("time limit for one token, seconds; 0: as in health checks", default=0.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        secret = context.secrets.get(args.api_key_secret)
        values = {name: getattr(args, name) for name in ("container", "base_url", "model", "model_id", "tok_per_s")}
        facts = RecipeFacts(
            **values, platform=args.platform, token_s=args.token_s, key=secret.reveal() if secret else ""
        )
        # short timeout: a Docker Engine that does not answer is itself a cause to report
        quick_context = replace(context, engine=DockerEngine(context.machine, timeout_s=DOCKER_TIMEOUT_S))
        report = {**diagnosis.diagnose(quick_context, facts), "sandbox": context.machine.sandbox}
        code = Exit(report["exit"])
        return Result(failed=code is not Exit.OK, exit=code, msg=report["summary"], fix=report["fix"], data=report)


class Serving(Module["Serving.Args"]):
    """Check that the server's container is running and generates one token. Changes nothing and never fails.

    The container name of the last verified state takes precedence over `name`. A response from /health alone is not enough.

    Returns: serving, verified (it is the last verified container), why (the problem, or the evidence that it is serving).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name, for a host where nothing has been verified yet", default="")
        timeout_s: float = arg("time limit for the token, seconds", default=10.0)

    def run(self, args: Args, context: Context) -> Result:
        verified_state = verified_states.load_last(context.state)
        name = str(verified_state.spec.get("name") or args.name)
        if not name:
            return _serving_result("nothing has ever been deployed here")
        try:
            container = containers.inspect(context.docker(), name)
            if container is None:
                return _serving_result(f"there is no container {name}")
            if not container["State"]["Running"]:
                return _serving_result(f"{name} is not running")
            url = containers.url_of(container)
            if not url:
                return _serving_result(f"{name} publishes no port")
            health_result = VerifyHealth().run(
                VerifyHealth.Args(base_url=url, tokens=1, timeout_s=args.timeout_s), context
            )
        except SparkwrightError as error:
            return _serving_result(str(error))
        is_verified = container["Id"] == verified_state.container_id
        return _serving_result(health_result.msg, serving=not health_result.failed, verified=is_verified)


def _serving_result(reason: str, *, serving: bool = False, verified: bool = False) -> Result:
    return Result(msg=reason, data={"serving": serving, "verified": verified, "why": reason})


#: written in place of a secret
MASK = "***"
MAX_NAMES = 8


class ContainerSettings(Module["ContainerSettings.Args"]):
    """Report the settings of an existing container under the keys of a recipe. Changes nothing.

    Values are masked before they leave the host if they, or their names, look like secrets: in variables, options, labels,
    shell text and JSON. The names are reported.

    Returns: name, image, entrypoint (null if it is the image's), program (the effective entrypoint, even if it is the
    image's), command, env (without the image's variables), ports, volumes, network, options (of `container` in a recipe),
    running.

    Refused if there is no such container; the message lists the running ones.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")

    def run(self, args: Args, context: Context) -> Result:
        client = context.docker()
        container = containers.inspect(client, args.name)
        if container is None:
            names = [containers.name_of(row) for row in containers.list_running(context) if row.get("Names")]
            running_note = f"Running: {join_first(sorted(names), MAX_NAMES)}." if names else "None is running."
            raise Refused(f"there is no container {args.name}.", fix=running_note)
        image = containers.image_of(client, container)
        config, host_config = container["Config"], container["HostConfig"]
        image_config = image.get("Config") or {}
        image_variables = inspection.parse_env(image_config.get("Env"))
        variables = inspection.parse_env(config.get("Env"))
        cache_variables = find_cache_variables(variables)
        env = {k: v for k, v in variables.items() if image_variables.get(k) != v and k not in cache_variables}
        entrypoint = config.get("Entrypoint") or []
        data = {
            "name": RunningContainer(container, image).name,
            "image": _image_reference(config, image),
            "entrypoint": None if entrypoint == (image_config.get("Entrypoint") or []) else entrypoint,
            "program": entrypoint,
            "command": config.get("Cmd") or [],
            "env": env,
            "ports": _format_ports(host_config.get("PortBindings") or {}),
            "volumes": [bind for bind in host_config.get("Binds") or () if f":{CACHE_MOUNT}" not in bind],
            "network": option_reader.read_network(container),
            "options": option_reader.read_options(container, image),
            "running": bool(container["State"]["Running"]),
        }
        return Result(msg=f"{data['name']}: {data['image']}", data=secret_patterns.mask_value(data, mask=MASK))


def _image_reference(config: Mapping[str, Any], image: dict[str, Any]) -> str:
    """Return the image's name as given to `docker run`, or its tag if an id was given, with the registry's digest if known."""
    given_name = str(config.get("Image") or "")
    is_id = given_name.startswith("sha256:")
    tag = next(iter(image.get("RepoTags") or ()), "") if is_id else without_digest(given_name)
    return with_digest(tag or given_name, digest_of(given_name) or next(iter(digests_of(image)), ""))


def _format_ports(bindings: Mapping[str, Any]) -> list[str]:
    """Return the ports as in `docker run --publish`: "8000:8000", "127.0.0.1:8000:8000"."""
    ports = []
    for container_port, port_bindings in bindings.items():
        for binding in port_bindings or ():
            address = str(binding.get("HostIp") or "")
            prefix = f"[{address}]:" if ":" in address else f"{address}:" if address not in ("", "0.0.0.0") else ""
            ports.append(f"{prefix}{binding['HostPort']}:{container_port.removesuffix('/tcp')}")
    return ports
