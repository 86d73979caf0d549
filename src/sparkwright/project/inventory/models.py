"""Pydantic models of hosts/*.yml and hosts/groups.yml."""

from __future__ import annotations

import ipaddress
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.gateway import clients
from sparkwright.project.documents.validation import Strict, build_validator, schema_field
from sparkwright.trust.container_option_rules import is_ip_address
from sparkwright.trust.image_name import check_image
from sparkwright.trust.process_option_rules import check_hostname


class SecretSource(Strict):
    """Source of a secret on the laptop: an environment variable, a file, or the output of a command."""

    IS_SECRET_SOURCE: ClassVar[bool] = True  # its value is never repeated in messages

    env: str | None = schema_field("an environment variable on the laptop", None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    file: str | None = schema_field("a file on the laptop; its content without the trailing newline", None)
    command: list[str] | None = schema_field("a command on the laptop, as a list; the secret is its output", None)

    @model_validator(mode="after")
    def _check_exactly_one(self) -> SecretSource:
        if (self.env, self.file, self.command).count(None) != 2:
            raise ValueError("set exactly one of `env`, `file` and `command`.")
        return self


def image_tag_error(image: str) -> str:
    """Return the reason why an image name is invalid or has a digest; empty if it is valid."""
    return "has a digest: use a tag; spark.lock pins its digest" if "@" in image else check_image(image)


def _address_error(text: str) -> str:
    return "" if is_ip_address(text) or not check_hostname(text) else "is neither an IP address nor a host name"


def _client_name_error(text: str) -> str:
    return "" if clients.CLIENT_NAME_PATTERN.fullmatch(text) else f"must consist of {clients.CLIENT_NAME_RULE}"


ClientName = Annotated[str, build_validator(_client_name_error)]
Address = Annotated[str, build_validator(_address_error)]


class TlsFile(Strict):
    """The gateway's certificate."""

    certificate: str = schema_field("a PEM file on the laptop: the certificate, then its chain")
    key: SecretSource = schema_field("its private key: a source, e.g. {file: ~/keys/lab.pem}; never the key itself")


class GatewayLimits(Strict):
    """Limits of the gateway: connections, sizes and times."""

    clients: int = schema_field(
        "simultaneous connections; further ones wait. A single address may use seven eighths of them, but only a quarter "
        "before it has sent a valid key",
        defaults.GATEWAY_MAX_CONNECTIONS,
        ge=1,
        le=10000,
    )
    body_mib: int | None = schema_field(
        "the largest request, MiB (default: enough for the longest context served)", None, ge=1, le=64
    )
    queue_s: int = schema_field(
        "how long a request may wait for a free server, seconds", defaults.GATEWAY_QUEUE_TIMEOUT_S, ge=1, le=3600
    )
    answer_s: int = schema_field(
        "how long a server may send nothing while it answers, seconds",
        defaults.GATEWAY_SILENCE_TIMEOUT_S,
        ge=1,
        le=86400,
    )
    stuck_s: int = schema_field(
        "seconds without progress in the engine's counters, despite open requests, after which a server counts as down; "
        "0: never",
        defaults.GATEWAY_STUCK_TIMEOUT_S,
        ge=0,
        le=3600,
    )
    check_s: int = schema_field(
        "seconds between two checks that a server generates a token", defaults.GATEWAY_CHECK_INTERVAL_S, ge=1, le=600
    )


class ClientFile(Strict):
    """A client with its own key."""

    key: SecretSource = schema_field("its API key: a source, e.g. {env: ALICE_KEY}; never the key itself")
    models: list[str] = schema_field("names of the models that it may use (default: all)", default_factory=list)
    requests_per_minute: int | None = schema_field("maximum number of requests per minute", None, ge=1, le=1_000_000)
    concurrent: int | None = schema_field("maximum number of requests at a time", None, ge=1, le=10_000)
    tokens_per_day: int | None = schema_field(
        "maximum number of tokens per day (UTC), prompts and answers together", None, ge=1, le=1_000_000_000_000
    )
    until: date | None = schema_field(
        "the last day on which its key is valid, e.g. 2027-01-31 (UTC; default: no end)", None
    )


class GatewayFile(Strict):
    """One address for the models of a group: HAProxy in a container."""

    host: str = schema_field("the host of the group on which it runs")
    port: int = schema_field("its port for clients", ge=1024, le=65534)
    control_port: int | None = schema_field(
        "the port at which its hosts drain their servers and return them to service (default: `port` + 1)",
        None,
        ge=1024,
        le=65535,
    )
    image: Annotated[str, build_validator(image_tag_error)] = schema_field(
        "HAProxy 2.6 to 3.0, REPOSITORY:TAG; spark.lock pins the digest", defaults.GATEWAY_IMAGE
    )
    publish: Literal["loopback", "lan"] = schema_field(
        "who can reach it: `lan` publishes it on all addresses of the host, `loopback` only on 127.0.0.1", "lan"
    )
    tls: TlsFile | Literal["none"] = schema_field("{certificate: FILE, key: SOURCE}, or `none` for plain HTTP")
    key: SecretSource | None = schema_field(
        "the API key that clients must send: a source, e.g. {env: GATEWAY_KEY}; never the key itself", None
    )
    clients: dict[ClientName, ClientFile] = schema_field(
        "clients with their own keys and limits, by name; in addition to `key`, which has no limits",
        default_factory=dict,
        max_length=clients.MAX_CLIENTS,
    )
    affinity: Literal["none", "prefix"] = schema_field(
        "how to choose among several servers of a model: `none` takes the one with the fewest requests; `prefix` sends the "
        "same first messages to the same server, unless it is much busier than the others",
        "none",
    )
    not_up: Literal["refuse", "wait"] = schema_field(
        "what to do with requests while no server of their model is up (all are restarting or asleep): `refuse` sends a "
        "503; `wait` makes them wait for at most `limits.queue_s`",
        "refuse",
    )
    models: dict[str, str] = schema_field(
        "additional names for its models, {NAME: SERVED NAME}, e.g. {claude-sonnet-4-5: qwen3.5-35b}",
        default_factory=dict,
    )
    limits: GatewayLimits = schema_field(
        "limits of clients, requests and time", default_factory=lambda: GatewayLimits.model_validate({})
    )
    addresses: dict[str, Address] = schema_field(
        "addresses at which the gateway reaches hosts, by host name, if not their `address`", default_factory=dict
    )


def _home_error(path: str) -> str:
    return "" if path.startswith("/") and ":" not in path else "is not a directory path: start with /, no colons"


Home = Annotated[str, build_validator(_home_error)]


class Shared(Strict):
    """Settings that groups and hosts may set. A host's own value overrides those of its groups."""

    user: str | None = schema_field("the ssh user (default: from your ssh configuration)", None)
    port: int | None = schema_field("sshd's port (default: from your ssh configuration)", None, ge=1, le=65535)
    home: Home | None = schema_field("the user's home directory on the host, if not /home/USER (or /root)", None)
    recipe: str | None = schema_field("the recipe to serve: a file of recipes/, without .yml", None)
    serve_port: int | None = schema_field(
        "publish the server on this port instead of the recipe's", None, ge=1, le=65535
    )
    registry_mirror: str | None = schema_field(
        "a registry mirror, e.g. mirror.lan:5000; tried first for pulls by digest",
        None,
        pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$",
    )
    model_from: str | None = schema_field(
        "the host from which the model is copied; that host downloads it from the hub", None
    )
    env: dict[str, str] = schema_field(
        "environment variables on the host: HF_ENDPOINT, HTTPS_PROXY (under `secrets` if it contains a password)",
        default_factory=dict,
    )
    secrets: dict[str, SecretSource] = schema_field(
        "sources of secrets, by name, e.g. HF_TOKEN: {env: HF_TOKEN}", default_factory=dict
    )
    vars: dict[str, Any] = schema_field("variables for playbooks and templates", default_factory=dict)


Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
Adapter = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _ip_address_error(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "is not an IP address, e.g. 192.168.100.10"
    is_usable = not (address.is_unspecified or address.is_multicast)
    return "" if is_usable else "is not an address that another host can reach"


class FabricFile(Strict):
    """A host's interfaces on the fast link of its cluster. `invoke cluster.inspect` proposes these settings."""

    interfaces: list[Interface] = schema_field(
        "its network interfaces, both halves of a port: [enp1s0f1np1, enP2p1s0f1np1]", min_length=1, max_length=8
    )
    address: Annotated[str, build_validator(_ip_address_error)] = schema_field("its IP address on the first interface")
    adapters: list[Adapter] = schema_field(
        "RDMA adapters of the interfaces, if not named after them: [rocep1s0f1, roceP2p1s0f1]",
        default_factory=list,
        max_length=8,
    )


class ClusterFile(Strict):
    """A recipe that the hosts of a group serve together."""

    recipe: str = schema_field("the recipe that they serve together; it must set `parallel`")
    head: str = schema_field("the host that answers requests; rank 0")
    port: int | None = schema_field(
        "the ranks' master port on the head (default: the engine's own)", None, ge=1024, le=65535
    )
    barrier_port: int = schema_field(
        "port on the head that the hosts' runs use to synchronize", defaults.BARRIER_PORT, ge=1024, le=65535
    )


def _duration_error(text: str) -> str:
    try:
        units.parse_duration(text, min_s=60)
    except Refused:
        return "is not a duration of at least a minute, e.g. 30m"
    return ""


Duration = Annotated[str, build_validator(_duration_error)]


class ServedFile(Strict):
    """One of the recipes that a host serves side by side or taking turns."""

    recipe: str = schema_field("the recipe: a file of recipes/, without .yml")
    port: int | None = schema_field("publish this server on this port instead of the recipe's", None, ge=1, le=65535)
    wake: Literal["on_request"] | None = schema_field(
        "under `on_demand`: with `on_request`, a request to a gateway for its model wakes it "
        "(default: only `invoke switch` does)",
        None,
    )
    sleep_after: Duration | None = schema_field(
        "with `wake`: after this time without a request, e.g. 30m, the server that it replaced is woken again "
        "(default: never)",
        None,
    )
    stay_awake: Duration | None = schema_field(
        "under `on_demand`: minimum time awake before a request may wake another server "
        f"(default: {defaults.MIN_AWAKE_TIME})",
        None,
    )


def _entry_kind(entry: Any) -> str:
    return "name" if isinstance(entry, str) else "entry"


#: discriminated by type, so that a mistake inside a mapping is not reported as "must be a string"
Served = Annotated[
    Annotated[str, Tag("name")] | Annotated[ServedFile, Tag("entry")],
    Discriminator(_entry_kind),
]


class HostFile(Shared):
    """hosts/NAME.yml: one host; the file's name is the host's name."""

    address: str | None = schema_field("name, IP or ssh alias (default: the host's name)", None)
    connection: Literal["ssh", "local", "sandbox"] = schema_field(
        "`ssh`, `local` (the laptop itself) or `sandbox` (a simulated Spark; if there are several, their names end in numbers)",
        "ssh",
    )
    groups: list[str] = schema_field("the groups it belongs to", default_factory=list)
    fabric: FabricFile | None = schema_field("this host's interfaces on the fast link of its cluster", None)
    serves: list[Served] | None = schema_field(
        "instead of `recipe`: several recipes side by side, each with its own port: [qwen3.5-35b, small]",
        None,
        min_length=1,
        max_length=8,
    )
    on_demand: list[Served] | None = schema_field(
        "at least two recipes that take turns in memory: one is awake at a time, initially the first; "
        "`invoke switch` changes it",
        None,
        min_length=1,
        max_length=8,
    )

    @property
    def lists_recipes(self) -> bool:
        """True if `serves` or `on_demand` is set."""
        return self.serves is not None or self.on_demand is not None


class GroupFile(Shared):
    """One group of hosts/groups.yml."""

    hosts: list[str] = schema_field(
        "members, in addition to hosts that list the group themselves", default_factory=list
    )
    min_serving: int | None = schema_field(
        "minimum number of hosts of this group that keep serving during a run; "
        "default: 1 when the run includes several hosts of the group",
        None,
        ge=0,
    )
    cluster: ClusterFile | None = schema_field("the hosts of this group serve one recipe together", None)
    gateway: GatewayFile | None = schema_field("one address for the models of this group", None)
