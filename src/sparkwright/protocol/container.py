"""The options of a recipe's container, as data.

To support another option of `docker run`, add a field with `option`: it declares how the option is created, read back, compared,
described in the recipe's schema and written to the docker run script. Comparisons that need more than the option's own value
are in host/containers/option_table.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

from sparkwright.protocol.docker_option import (
    BOOLEAN,
    NUMBER,
    TEXT,
    TEXT_MAP,
    TEXTS,
    DockerOption,
    gpu_arguments,
    health_arguments,
    no_arguments,
    option,
    switch_arguments,
    tristate_arguments,
)
from sparkwright.trust import container_option_rules, process_option_rules, security_option_rules
from sparkwright.trust.shapes import OptionalField, Shape, optional

#: prefix of sparkwright's own labels, which recipes can't set and which are never compared
OWN_LABEL_PREFIX = "sparkwright."
#: container name suffixes reserved for sparkwright: a server kept for rollback, an interim server, and a new server while the
#: one that it replaces is still running
PREVIOUS_SUFFIX, INTERIM_SUFFIX, REPLACEMENT_SUFFIX = "-previous", "-interim", "-replacement"
RESERVED_SUFFIXES, RESERVED_NAMES = (PREVIOUS_SUFFIX, INTERIM_SUFFIX, REPLACEMENT_SUFFIX), ("gateway", "gateway-check")
#: prefixes of `server_key` in a spec; the name of a secret sent with the run, or the fingerprint of a key stored on the host,
#: follows
SECRET_PREFIX, FINGERPRINT_PREFIX = "given:", "kept:"

#: labels of every container that sparkwright created: its owner, its role, the server's container name, and the run's id
OWNER_LABEL, ROLE_LABEL, SERVER_LABEL = "sparkwright.owner", "sparkwright.role", "sparkwright.server"
RUN_LABEL = "sparkwright.run"

#: label of a container that the lab started; its value is the arm of the experiment
LAB_LABEL = "sparkwright.bench"

#: labels of a cluster member's container: the cluster's name, the member's rank, and all members' names by rank
CLUSTER_LABEL, RANK_LABEL, MEMBERS_LABEL = "sparkwright.cluster", "sparkwright.rank", "sparkwright.members"

#: shapes by the types of the fields in ContainerSpec
_SHAPES_BY_TYPE: dict[str, Shape] = {
    "str": str,
    "bool": bool,
    "int": int,
    "float": float,
    "bool | None": (None, bool),
    "tuple[str, ...]": [str],
    "dict[str, str]": {str: str},
}


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container's `docker run` options, named as in Docker."""

    name: str
    #: "repo:tag@sha256:..."
    image: str
    #: the restart policy, enabled once the server is verified
    restart: str = "unless-stopped"
    #: "all" or "device=0,1"; empty if the container gets no GPU
    gpus: str = option(
        "--gpus",
        "all",
        key="DeviceRequests",
        shape=optional([{"Count": NUMBER, "DeviceIDs": TEXTS, "Capabilities": optional([[str]])}]),
        to_api=container_option_rules.device_requests,
        normalize=container_option_rules.normalize_device_requests,
        effect="without it the engine finds no GPU",
        to_arguments=gpu_arguments,
    )
    ipc: str = option(
        "--ipc",
        "host",
        key="IpcMode",
        description="Docker's --ipc: host, private, shareable or none; empty: Docker's default",
        check=container_option_rules.check_ipc_mode,
        ignored_if_empty=True,
        effect="the engine's workers share memory in this namespace",
    )
    shm_size: str = option(
        "--shm-size",
        key="ShmSize",
        shape=NUMBER,
        description='Docker\'s --shm-size, e.g. "64gb"',
        check=container_option_rules.check_size,
        to_api=container_option_rules.parse_size,
        ignored_if_empty=True,
    )
    #: "8000:8000" or "127.0.0.1:8000:8000"
    ports: tuple[str, ...] = option(
        "-p",
        (),
        key="PortBindings",
        shape=optional({str: object}),
        to_api=container_option_rules.port_bindings,
        normalize=container_option_rules.normalize_port_bindings,
        effect="clients connect to these ports",
    )
    #: "/host/folder:/container/folder[:ro]", with ~ expanded
    volumes: tuple[str, ...] = option(
        "-v", (), key="Binds", shape=TEXTS, normalize=container_option_rules.normalize_binds
    )
    env: dict[str, str] = option("-e", dict)
    #: "memlock": "-1" or "soft:hard"
    ulimits: dict[str, str] = option(
        "--ulimit",
        dict,
        key="Ulimits",
        shape=optional([{"Name": str, "Soft": int, "Hard": int}]),
        to_api=container_option_rules.ulimit_rows,
        normalize=container_option_rules.normalize_ulimits,
    )
    labels: dict[str, str] = option("--label", dict)
    network: str = option(
        "--network",
        key="NetworkMode",
        description='"host", the name of an existing Docker network, or name=NETWORK,alias=NAME; empty: Docker\'s default '
        "bridge. With `host` the server listens on the host's addresses at its engine's port, and `ports` must not be set",
        check=process_option_rules.check_network,
        to_api=lambda value: process_option_rules.parse_network(value)[0],
        effect="decides which clients can reach the server, and what the server can reach",
    )
    networks: tuple[str, ...] = option(
        "--network",
        (),
        description="additional networks that the container joins before it starts, as NETWORK or "
        "name=NETWORK,alias=NAME",
        check=process_option_rules.check_additional_network,
        to_arguments=no_arguments,
    )
    hostname: str = option(
        "--hostname",
        key="Hostname",
        section="Config",
        description="hostname of the container; empty: its id",
        check=process_option_rules.check_hostname,
    )
    extra_hosts: tuple[str, ...] = option(
        "--add-host",
        (),
        key="ExtraHosts",
        shape=TEXTS,
        description='additional host names, "NAME:ADDRESS" or "NAME:host-gateway"',
        check=process_option_rules.check_extra_host,
        to_api=process_option_rules.format_extra_hosts,
        normalize=process_option_rules.normalize_extra_hosts,
    )
    dns: tuple[str, ...] = option(
        "--dns",
        (),
        key="Dns",
        shape=TEXTS,
        description="DNS servers, in order",
        check=process_option_rules.check_dns_server,
        normalize=process_option_rules.normalize_dns_servers,
    )
    user: str = option(
        "--user",
        key="User",
        section="Config",
        description='user that runs the server, "1000:1000" or a user name in the image; empty: the image\'s',
        check=security_option_rules.check_user,
        normalize=lambda value: value or "",
    )
    group_add: tuple[str, ...] = option(
        "--group-add",
        (),
        key="GroupAdd",
        shape=TEXTS,
        description='additional groups, by name or number in quotes, such as "44"',
        check=security_option_rules.check_group,
        normalize=lambda value: sorted(set(value or ())),
    )
    privileged: bool = option(
        "--privileged",
        False,
        key="Privileged",
        shape=BOOLEAN,
        description="access to all devices, with all capabilities of root on the host. Prefer `devices` and `cap_add`",
        normalize=bool,
        effect="a privileged container has root access to the host",
        to_arguments=switch_arguments,
    )
    cap_add: tuple[str, ...] = option(
        "--cap-add",
        (),
        key="CapAdd",
        shape=TEXTS,
        description="capabilities in addition to Docker's default, such as SYS_PTRACE or IPC_LOCK",
        check=security_option_rules.check_capability,
        to_api=security_option_rules.docker_capabilities,
        normalize=security_option_rules.normalize_capabilities,
    )
    cap_drop: tuple[str, ...] = option(
        "--cap-drop",
        (),
        key="CapDrop",
        shape=TEXTS,
        description="capabilities to remove from Docker's default, or ALL",
        check=security_option_rules.check_capability,
        to_api=security_option_rules.docker_capabilities,
        normalize=security_option_rules.normalize_capabilities,
    )
    security_opt: tuple[str, ...] = option(
        "--security-opt",
        (),
        key="SecurityOpt",
        shape=TEXTS,
        description="no-new-privileges, seccomp=unconfined, apparmor=PROFILE or label=disable",
        check=security_option_rules.check_security_opt,
        normalize=security_option_rules.normalize_security_opts,
    )
    devices: tuple[str, ...] = option(
        "--device",
        (),
        key="Devices",
        shape=optional([{"PathOnHost": str, "PathInContainer": str, "CgroupPermissions": TEXT}]),
        description='devices of the host, such as "/dev/infiniband" or "/dev/a:/dev/b:rw"',
        check=security_option_rules.check_device,
        to_api=security_option_rules.device_mappings,
        normalize=security_option_rules.normalize_devices,
    )
    pid: str = option(
        "--pid",
        key="PidMode",
        description='"host": the container sees the host\'s processes; empty: only its own',
        check=process_option_rules.check_pid_mode,
        normalize=lambda value: value or "",
    )
    init: bool | None = option(
        "--init",
        None,
        key="Init",
        shape=BOOLEAN,
        description="run an init process as PID 1; unset: Docker's default",
        to_arguments=tristate_arguments,
    )
    working_dir: str = option(
        "--workdir",
        key="WorkingDir",
        section="Config",
        description="working directory; empty: the image's",
        check=process_option_rules.check_working_dir,
        normalize=process_option_rules.normalize_working_dir,
    )
    stop_signal: str = option(
        "--stop-signal",
        key="StopSignal",
        section="Config",
        description="signal that stops the container; empty: the image's, otherwise SIGTERM",
        check=process_option_rules.check_stop_signal,
        normalize=process_option_rules.normalize_stop_signal,
    )
    healthcheck: dict[str, str] = option(
        "--health",
        dict,
        key="Healthcheck",
        section="Config",
        shape=optional(
            {"Test": TEXTS} | dict.fromkeys(("Interval", "Timeout", "StartPeriod", "Retries"), NUMBER),
        ),
        description="Docker health check that replaces the image's: test (a shell command, or NONE to disable it), interval, "
        'timeout, start_period (e.g. 30s), retries (e.g. "3"). sparkwright does not use its result',
        check=process_option_rules.check_healthcheck,
        to_api=process_option_rules.health_config,
        to_arguments=health_arguments,
    )
    tmpfs: tuple[str, ...] = option(
        "--tmpfs",
        (),
        key="Tmpfs",
        shape=TEXT_MAP,
        description='folders in memory, "/tmp" or "/tmp:size=1g,noexec"',
        check=process_option_rules.check_tmpfs,
        to_api=process_option_rules.tmpfs_rows,
        normalize=process_option_rules.normalize_tmpfs,
    )
    sysctls: dict[str, str] = option(
        "--sysctl",
        dict,
        key="Sysctls",
        shape=TEXT_MAP,
        description='kernel settings of the container, such as net.core.somaxconn: "1024"',
        check=security_option_rules.check_sysctls,
        normalize=lambda value: dict(value or {}),
    )
    memory: str = option(
        "--memory",
        key="Memory",
        shape=NUMBER,
        description='memory limit, e.g. "100gb"',
        check=process_option_rules.check_memory,
        to_api=container_option_rules.parse_size,
        normalize=lambda value: value or 0,
    )
    memory_swap: str = option(
        "--memory-swap",
        key="MemorySwap",
        shape=NUMBER,
        description='limit of memory and swap together, e.g. "100gb" (equal to `memory`: no swap) or "-1" (no limit); empty: '
        "twice `memory`",
        check=process_option_rules.check_memory_swap,
        to_api=process_option_rules.parse_swap,
    )
    cpus: float = option(
        "--cpus",
        0.0,
        key="NanoCpus",
        shape=NUMBER,
        description="number of CPUs that the container may use, e.g. 4 or 1.5; 0: all",
        check=process_option_rules.check_cpus,
        to_api=process_option_rules.nano_cpus,
        normalize=lambda value: (value or 0) / 10**9,
    )
    cpuset_cpus: str = option(
        "--cpuset-cpus",
        key="CpusetCpus",
        description='CPUs that the container may use, "0-9" or "0,2"',
        check=process_option_rules.check_cpuset,
        normalize=process_option_rules.parse_cpuset,
    )
    oom_score_adj: int = option(
        "--oom-score-adj",
        0,
        key="OomScoreAdj",
        shape=NUMBER,
        description="how early the kernel kills the container's processes when memory is short, -1000 (last) to 1000 "
        "(first)",
        check=process_option_rules.check_oom_score_adj,
        normalize=lambda value: value or 0,
    )
    log_driver: str = option(
        "--log-driver",
        key="LogConfig",
        shape=optional({"Type": TEXT, "Config": TEXT_MAP}),
        description="log driver; empty: Docker's default",
        check=process_option_rules.check_log_driver,
    )
    log_options: dict[str, str] = option(
        "--log-opt",
        dict,
        description='options of the log driver, such as max-size: "100m"',
        check=process_option_rules.check_log_options,
    )
    #: None for the image's entrypoint
    entrypoint: tuple[str, ...] | None = None
    #: arguments after the image
    command: tuple[str, ...] = ()
    #: see `locked_ids`
    image_ids: tuple[str, ...] = ()
    #: SECRET_PREFIX or FINGERPRINT_PREFIX with a name or fingerprint, never the key itself; empty if the server has no key
    server_key: str = ""
    #: files mounted read-only in the container: SHA-256 of the content, by path
    files: dict[str, str] = field(default_factory=dict)
    #: key of the server's compile cache on the host; empty if it has no cache
    caches: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON. Fields that older releases do not support are left out unless they are set."""
        defaults = asdict(ContainerSpec("", ""))
        return {
            name: value for name, value in asdict(self).items() if name not in NEWER_FIELDS or value != defaults[name]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ContainerSpec:
        """Rebuild a spec from the output of `to_json`. Raises TypeError for an unknown key."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)

    def docker_options(self) -> Iterator[tuple[str, str]]:
        """Yield the `docker run` options with their values; a switch's value is empty.

        The script's template adds the name, restart policy, entrypoint, the server key's mount and additional networks.
        """
        for name, docker_option in DOCKER_OPTIONS.items():
            yield from docker_option.to_arguments(docker_option.flag, getattr(self, name))

    def further_networks(self) -> list[list[str]]:
        """Return the arguments of `docker network connect` for each of `networks`, without the container's name."""
        parsed = map(process_option_rules.parse_network, self.networks)
        return [[*(word for alias in aliases for word in ("--alias", alias)), name] for name, aliases in parsed]


class SpecRecord(TypedDict, total=False):
    """The JSON of a ContainerSpec, in a record that an earlier version may have written with fewer fields."""

    name: str
    image: str
    restart: str
    gpus: str
    ipc: str
    shm_size: str
    ports: Sequence[str]
    volumes: Sequence[str]
    env: dict[str, str]
    ulimits: dict[str, str]
    labels: dict[str, str]
    network: str
    networks: Sequence[str]
    hostname: str
    extra_hosts: Sequence[str]
    dns: Sequence[str]
    user: str
    group_add: Sequence[str]
    privileged: bool
    cap_add: Sequence[str]
    cap_drop: Sequence[str]
    security_opt: Sequence[str]
    devices: Sequence[str]
    pid: str
    init: bool | None
    working_dir: str
    stop_signal: str
    healthcheck: dict[str, str]
    tmpfs: Sequence[str]
    sysctls: dict[str, str]
    memory: str
    memory_swap: str
    cpus: float
    cpuset_cpus: str
    oom_score_adj: int
    log_driver: str
    log_options: dict[str, str]
    entrypoint: Sequence[str] | None
    command: Sequence[str]
    image_ids: Sequence[str]
    server_key: str
    files: dict[str, str]
    caches: str


#: in the order of the fields
DOCKER_OPTIONS: dict[str, DockerOption] = {
    field.name: field.metadata["option"] for field in fields(ContainerSpec) if "option" in field.metadata
}
#: shapes of the options' JSON values, by name; an option may be missing
OPTION_SHAPES: dict[str, Shape] = {
    field.name: OptionalField(_SHAPES_BY_TYPE[str(field.type)])
    for field in fields(ContainerSpec)
    if field.name in ("restart", *DOCKER_OPTIONS)
}
#: fields that older releases refuse
NEWER_FIELDS = {
    *(
        name
        for name, docker_option in DOCKER_OPTIONS.items()
        if docker_option.description and not docker_option.ignored_if_empty
    ),
    *("server_key", "files", "caches", "log_driver", "memory_swap"),
}


def locked_ids(entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the image Ids that Docker may report for a locked image; empty for an entry without manifests.

    The Id depends on the platform and the image store. entry: the image's entry in spark.lock.
    """
    manifests = (entry or {}).get("manifests") or ()
    return tuple(manifest[key] for manifest in manifests for key in ("config", "digest"))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Return a fingerprint of a container's command and environment: 12 hex digits, independent of the order of options."""
    parts = [sorted(group_options(spec.get("command") or ())), sorted((spec.get("env") or {}).items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def start_key(spec: Mapping[str, Any], commit: str) -> dict[str, str]:
    """Return the values that identify a start of a server: `image` is a digest, `model` a commit, `caches` a cache key."""
    image = str(spec.get("image") or "")
    key = {"image": image.partition("@")[2] or image, "model": commit, "arguments": fingerprint(spec)}
    return {**key, "caches": str(spec.get("caches") or "")}


def group_options(command: Sequence[Any]) -> list[str]:
    """Return the options of a command, each joined with its values."""
    grouped: list[str] = []
    for word in map(str, command):
        if word.startswith("--") or not grouped:
            grouped.append(word)
        else:
            grouped[-1] += f" {word}"
    return grouped
