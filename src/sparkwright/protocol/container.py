"""The options of a recipe's container, as data.

Each field declares how the option is created, read back, compared, described in the recipe's schema and written to the docker
run script: to support another option of `docker run`, add a field with `option`. If a difference depends on more than the
option's own value, the rule is in host/containers/option_table.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparkwright.protocol import docker_option as way
from sparkwright.protocol.docker_option import DockerOption, option
from sparkwright.trust import container_option_rules as words
from sparkwright.trust import process_option_rules as net
from sparkwright.trust import process_option_rules as process
from sparkwright.trust import security_option_rules as rights
from sparkwright.trust.shapes import optional

#: prefix of sparkwright's own labels: recipes can't set them, and they are never compared
OWN_LABELS = "sparkwright."
#: name suffixes that sparkwright uses itself, forbidden in recipes: a server kept for a rollback, an interim server, and a new
#: server until the one that it replaces is stopped
PREVIOUS_SUFFIX, INTERIM_SUFFIX, REPLACEMENT_SUFFIX = "-previous", "-interim", "-replacement"
RESERVED_SUFFIXES, RESERVED_NAMES = (PREVIOUS_SUFFIX, INTERIM_SUFFIX, REPLACEMENT_SUFFIX), ("gateway", "gateway-check")
#: prefixes of a server key in a spec: a secret sent with the run, or the fingerprint of a key stored on the host
SECRET_PREFIX, FINGERPRINT_PREFIX = "given:", "kept:"

#: on every container that sparkwright created: its owner, its role, the server's container name, and the run that created it
OWNER_LABEL, ROLE_LABEL, SERVER_LABEL = "sparkwright.owner", "sparkwright.role", "sparkwright.server"
RUN_LABEL = "sparkwright.run"

#: label of a container that the lab started; its value is the arm
LAB_LABEL = "sparkwright.bench"

#: labels of a cluster member's container: the cluster's name, the member's rank, and all members' names by rank
CLUSTER_LABEL, RANK_LABEL, MEMBERS_LABEL = "sparkwright.cluster", "sparkwright.rank", "sparkwright.members"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The options of `docker run` for a container, in Docker's order and terms."""

    name: str
    #: "repo:tag@sha256:..."
    image: str
    #: the restart policy, enabled once the server is verified
    restart: str = "unless-stopped"
    #: "all", "device=0,1" or "" for none
    gpus: str = option(
        "--gpus",
        "all",
        key="DeviceRequests",
        shape=optional([{"Count": way.NUMBER, "DeviceIDs": way.TEXTS, "Capabilities": optional([[str]])}]),
        to_engine=words.device_requests,
        normalize=words.normalize_device_requests,
        why="without it the engine finds no GPU",
        to_arguments=way.gpu_arguments,
    )
    ipc: str = option(
        "--ipc",
        "host",
        key="IpcMode",
        about="docker's --ipc: host, private, shareable or none; empty: Docker's default",
        why_not=words.check_ipc_mode,
        open=True,
        why="workers share memory through it",
    )
    shm_size: str = option(
        "--shm-size",
        key="ShmSize",
        shape=way.NUMBER,
        about='docker\'s --shm-size, e.g. "64gb"',
        why_not=words.check_size,
        to_engine=words.parse_size,
        open=True,
    )
    #: "8000:8000" or "127.0.0.1:8000:8000"
    ports: tuple[str, ...] = option(
        "-p",
        (),
        key="PortBindings",
        shape=optional({str: object}),
        to_engine=words.port_bindings,
        normalize=words.normalize_port_bindings,
        why="where clients find the server",
    )
    #: "/host/folder:/container/folder[:ro]", ~ already expanded
    volumes: tuple[str, ...] = option("-v", (), key="Binds", shape=way.TEXTS, normalize=words.normalize_binds)
    env: dict[str, str] = option("-e", dict)
    #: "memlock": "-1" or "soft:hard"
    ulimits: dict[str, str] = option(
        "--ulimit",
        dict,
        key="Ulimits",
        shape=optional([{"Name": str, "Soft": int, "Hard": int}]),
        to_engine=words.ulimit_rows,
        normalize=words.normalize_ulimits,
    )
    labels: dict[str, str] = option("--label", dict)
    network: str = option(
        "--network",
        key="NetworkMode",
        about='"host", the name of a network that the host has, or name=NETWORK,alias=NAME; empty: Docker\'s own bridge. '
        "With `host` the server listens on the host's own addresses at its engine's port, and `ports` has no meaning",
        why_not=net.check_network,
        to_engine=lambda value: net.parse_network(value)[0],
        why="who reaches the server, and whom it reaches",
    )
    networks: tuple[str, ...] = option(
        "--network",
        (),
        about="further networks that it joins before it starts, as NETWORK or name=NETWORK,alias=NAME",
        why_not=net.check_additional_network,
        to_arguments=way.no_arguments,
    )
    hostname: str = option(
        "--hostname",
        key="Hostname",
        section="Config",
        about="its hostname; empty: the container's id",
        why_not=net.check_hostname,
    )
    extra_hosts: tuple[str, ...] = option(
        "--add-host",
        (),
        key="ExtraHosts",
        shape=way.TEXTS,
        about='additional host names, "NAME:ADDRESS" or "NAME:host-gateway"',
        why_not=net.check_extra_host,
        to_engine=net.format_extra_hosts,
        normalize=net.normalize_extra_hosts,
    )
    dns: tuple[str, ...] = option(
        "--dns",
        (),
        key="Dns",
        shape=way.TEXTS,
        about="DNS servers, in order",
        why_not=net.check_dns_server,
        normalize=net.normalize_dns_servers,
    )
    user: str = option(
        "--user",
        key="User",
        section="Config",
        about='who runs it, "1000:1000" or a name of the image; empty: the image\'s',
        why_not=rights.check_user,
        normalize=lambda found: found or "",
    )
    group_add: tuple[str, ...] = option(
        "--group-add",
        (),
        key="GroupAdd",
        shape=way.TEXTS,
        about='additional groups, by name or number in quotes, such as "44"',
        why_not=rights.check_group,
        normalize=lambda found: sorted(set(found or ())),
    )
    privileged: bool = option(
        "--privileged",
        False,
        key="Privileged",
        shape=way.BOOLEAN,
        about="all devices and all rights of the host's root. Prefer `devices` and `cap_add`",
        normalize=bool,
        why="it can do on the host what root can",
        to_arguments=way.switch_arguments,
    )
    cap_add: tuple[str, ...] = option(
        "--cap-add",
        (),
        key="CapAdd",
        shape=way.TEXTS,
        about="capabilities in addition to Docker's default, such as SYS_PTRACE or IPC_LOCK",
        why_not=rights.check_capability,
        to_engine=rights.docker_capabilities,
        normalize=rights.normalize_capabilities,
    )
    cap_drop: tuple[str, ...] = option(
        "--cap-drop",
        (),
        key="CapDrop",
        shape=way.TEXTS,
        about="capabilities of Docker's default to remove, or ALL",
        why_not=rights.check_capability,
        to_engine=rights.docker_capabilities,
        normalize=rights.normalize_capabilities,
    )
    security_opt: tuple[str, ...] = option(
        "--security-opt",
        (),
        key="SecurityOpt",
        shape=way.TEXTS,
        about="no-new-privileges, seccomp=unconfined, apparmor=PROFILE or label=disable",
        why_not=rights.check_security_opt,
        normalize=rights.normalize_security_opts,
    )
    devices: tuple[str, ...] = option(
        "--device",
        (),
        key="Devices",
        shape=optional([{"PathOnHost": str, "PathInContainer": str, "CgroupPermissions": way.TEXT}]),
        about='devices of the host, "/dev/infiniband", "/dev/a:/dev/b:rw"',
        why_not=rights.check_device,
        to_engine=rights.device_mappings,
        normalize=rights.normalize_devices,
    )
    pid: str = option(
        "--pid",
        key="PidMode",
        about='"host": it sees the processes of the host; empty: only its own',
        why_not=process.check_pid_mode,
        normalize=lambda found: found or "",
    )
    init: bool | None = option(
        "--init",
        None,
        key="Init",
        shape=way.BOOLEAN,
        about="a small init as its first process; unset: the engine's default",
        to_arguments=way.tristate_arguments,
    )
    working_dir: str = option(
        "--workdir",
        key="WorkingDir",
        section="Config",
        about="its working directory; empty: the image's",
        why_not=process.check_working_dir,
        normalize=process.normalize_working_dir,
    )
    stop_signal: str = option(
        "--stop-signal",
        key="StopSignal",
        section="Config",
        about="the signal that stops it; empty: the image's, otherwise SIGTERM",
        why_not=process.check_stop_signal,
        normalize=process.normalize_stop_signal,
    )
    healthcheck: dict[str, str] = option(
        "--health",
        dict,
        key="Healthcheck",
        section="Config",
        shape=optional({"Test": way.TEXTS}),
        about="Docker's own health check over the image's: test (a shell command, or NONE for none), interval, timeout, "
        'start_period (as 30s), retries (as "3"). sparkwright does not read it',
        why_not=process.check_healthcheck,
        to_engine=process.health_config,
        to_arguments=way.health_arguments,
    )
    tmpfs: tuple[str, ...] = option(
        "--tmpfs",
        (),
        key="Tmpfs",
        shape=way.TEXT_MAP,
        about='folders in memory, "/tmp" or "/tmp:size=1g,noexec"',
        why_not=process.check_tmpfs,
        to_engine=process.tmpfs_rows,
        normalize=process.normalize_tmpfs,
    )
    sysctls: dict[str, str] = option(
        "--sysctl",
        dict,
        key="Sysctls",
        shape=way.TEXT_MAP,
        about='its own kernel settings, such as net.core.somaxconn: "1024"',
        why_not=rights.check_sysctls,
        normalize=lambda found: dict(found or {}),
    )
    memory: str = option(
        "--memory",
        key="Memory",
        shape=way.NUMBER,
        about='memory limit, e.g. "100gb"',
        why_not=process.check_memory,
        to_engine=words.parse_size,
        normalize=lambda found: found or 0,
    )
    memory_swap: str = option(
        "--memory-swap",
        key="MemorySwap",
        shape=way.NUMBER,
        about='memory and swap together, e.g. "100gb" (as `memory`: no swap) or "-1" (no limit); empty: twice `memory`',
        why_not=process.check_memory_swap,
        to_engine=process.parse_swap,
    )
    cpus: float = option(
        "--cpus",
        0.0,
        key="NanoCpus",
        shape=way.NUMBER,
        about="number of CPUs it may use, e.g. 4 or 1.5; 0: all",
        why_not=process.check_cpus,
        to_engine=process.nano_cpus,
        normalize=lambda found: (found or 0) / 10**9,
    )
    cpuset_cpus: str = option(
        "--cpuset-cpus",
        key="CpusetCpus",
        about='the CPUs it may use, "0-9" or "0,2"',
        why_not=process.check_cpuset,
        normalize=process.parse_cpuset,
    )
    oom_score_adj: int = option(
        "--oom-score-adj",
        0,
        key="OomScoreAdj",
        shape=way.NUMBER,
        about="how early the kernel kills it when memory is short, -1000 (last) to 1000",
        why_not=process.check_oom_score_adj,
        normalize=lambda found: found or 0,
    )
    log_driver: str = option(
        "--log-driver",
        key="LogConfig",
        shape=optional({"Type": way.TEXT, "Config": way.TEXT_MAP}),
        about="Docker's log driver; empty: the engine's default",
        why_not=process.check_log_driver,
    )
    log_options: dict[str, str] = option(
        "--log-opt",
        dict,
        about='options of the log driver, such as max-size: "100m"',
        why_not=process.check_log_options,
    )
    #: None: the image's own
    entrypoint: tuple[str, ...] | None = None
    #: the arguments after the image
    command: tuple[str, ...] = ()
    image_ids: tuple[str, ...] = ()
    #: empty for none, else SECRET_PREFIX or FINGERPRINT_PREFIX followed by its name; never the key itself
    server_key: str = ""
    #: files mounted read-only in the container: SHA-256 of the content, by path
    files: dict[str, str] = field(default_factory=dict)
    #: the key of its compile cache on the host; empty for none
    caches: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse. Default values are left out, so that older releases can read it."""
        defaults = asdict(ContainerSpec("", ""))
        return {
            name: value for name, value in asdict(self).items() if name not in NEWER_FIELDS or value != defaults[name]
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ContainerSpec:
        """Return a spec from plain JSON. Raises TypeError for an unknown key."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**values)

    def docker_options(self) -> Iterator[tuple[str, str]]:
        """Yield the options of `docker run` with their values; the value of a switch is empty.

        Name, restart policy, entrypoint, the key's mount and further networks are added by the template.
        """
        for name, docker_option in DOCKER_OPTIONS.items():
            yield from docker_option.to_arguments(docker_option.flag, getattr(self, name))

    def further_networks(self) -> list[list[str]]:
        """Return the arguments of `docker network connect`, without the container's name, for each network but the first."""
        parsed = map(net.parse_network, self.networks)
        return [[*(word for alias in aliases for word in ("--alias", alias)), name] for name, aliases in parsed]


#: the options by field name, in the order of the fields
DOCKER_OPTIONS: dict[str, DockerOption] = {
    field.name: field.metadata["option"] for field in fields(ContainerSpec) if "option" in field.metadata
}
#: the fields that older releases do not have
_OTHER_NEWER_FIELDS = {"server_key", "files", "caches", "log_driver", "memory_swap"}
NEWER_FIELDS = {
    name for name, docker_option in DOCKER_OPTIONS.items() if docker_option.about and not docker_option.open
} | _OTHER_NEWER_FIELDS


def locked_ids(entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the Ids that a locked image may have, for all platforms and image stores; empty without manifests."""
    manifests = (entry or {}).get("manifests") or ()
    return tuple(manifest[key] for manifest in manifests for key in ("config", "digest"))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Return the fingerprint of a container's command and environment, 12 hex digits that do not depend on order."""
    parts = [sorted(group_options(spec.get("command") or ())), sorted((spec.get("env") or {}).items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def start_key(spec: Mapping[str, Any], commit: str) -> dict[str, str]:
    """Return the key of a start: image (its digest), model (its commit), arguments, caches (of its compile cache)."""
    image = str(spec.get("image") or "")
    key = {"image": image.partition("@")[2] or image, "model": commit, "arguments": fingerprint(spec)}
    return {**key, "caches": str(spec.get("caches") or "")}


def group_options(command: Sequence[Any]) -> list[str]:
    """Return the options of a command, each joined with its values, so that they can be sorted."""
    grouped: list[str] = []
    for word in map(str, command):
        if word.startswith("--") or not grouped:
            grouped.append(word)
        else:
            grouped[-1] += f" {word}"
    return grouped
