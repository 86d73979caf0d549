"""Pydantic models of hosts/*.yml and hosts/groups.yml."""

from __future__ import annotations

import ipaddress
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.gateway import clients
from sparkwright.project.documents.validation import Strict, rule
from sparkwright.trust.container_words import is_address
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.trust.process_words import hostname


class SecretSource(Strict):
    """The source of a secret on the laptop: one of an environment variable, a file, a command's output."""

    NAMES_A_SECRET: ClassVar[bool] = True  # messages about it never repeat the value

    env: str | None = Field(
        None, description="an environment variable of the laptop", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    file: str | None = Field(None, description="a file on the laptop; its content without the trailing newline")
    command: list[str] | None = Field(None, description="a command on the laptop, as a list; its output")

    @model_validator(mode="after")
    def _one(self) -> SecretSource:
        if sum(part is not None for part in (self.env, self.file, self.command)) != 1:
            raise ValueError("set exactly one of `env`, `file` and `command`.")
        return self


def _why_not_a_tag(ref: str) -> str:
    return "has a digest: use a tag; spark.lock pins its digest" if "@" in ref else why_not_an_image(ref)


def _why_not_an_address(text: str) -> str:
    return "" if is_address(text) or not hostname(text) else "is neither an IP address nor a host name"


def _why_not_a_client(text: str) -> str:
    return "" if clients.NAME.fullmatch(text) else f"needs {clients.NAME_RULE}"


ClientName = Annotated[str, rule(_why_not_a_client)]
Address = Annotated[str, rule(_why_not_an_address)]


class TlsFile(Strict):
    """The gateway's certificate."""

    certificate: str = Field(description="a PEM file on the laptop: the certificate, then its chain")
    key: SecretSource = Field(
        description="its private key: a source, e.g. {file: ~/keys/lab.pem}; never the key itself"
    )


class GatewayLimits(Strict):
    """Limits of the gateway: connections, sizes and times."""

    clients: int = Field(
        defaults.GATEWAY_CLIENTS,
        description="connections at a time; more wait. One address may have seven eighths of them, and a quarter until it has "
        "sent a valid key",
        ge=1,
        le=10000,
    )
    body_mib: int | None = Field(
        None, description="the largest request, MiB (default: enough for the longest context served)", ge=1, le=64
    )
    queue_s: int = Field(
        defaults.GATEWAY_QUEUE_S, description="how long a request may wait for a free server, seconds", ge=1, le=3600
    )
    answer_s: int = Field(
        defaults.GATEWAY_ANSWER_S, description="the longest silence of a server that answers, seconds", ge=1, le=86400
    )
    stuck_s: int = Field(
        defaults.GATEWAY_STUCK_S,
        description="a server that has requests, and whose engine's own counters show no progress for so many seconds, is down; "
        "0: never",
        ge=0,
        le=3600,
    )
    check_s: int = Field(
        defaults.GATEWAY_CHECK_S, description="seconds between two checks that a server generates a token", ge=1, le=600
    )


class ClientFile(Strict):
    """A client with a key of its own."""

    key: SecretSource = Field(description="its API key: a source, e.g. {env: ALICE_KEY}; never the key itself")
    models: list[str] = Field(default_factory=list, description="names of the models that it may use (default: all)")
    requests_per_minute: int | None = Field(None, description="the most requests in a minute", ge=1, le=1_000_000)
    concurrent: int | None = Field(None, description="the most requests at a time", ge=1, le=10_000)
    tokens_per_day: int | None = Field(
        None,
        description="the most tokens of its prompts and answers together in a day (UTC)",
        ge=1,
        le=1_000_000_000_000,
    )
    until: date | None = Field(
        None, description="the last day on which its key is valid, e.g. 2027-01-31 (UTC; default: no end)"
    )


class GatewayFile(Strict):
    """One address for the models of a group: HAProxy in a container."""

    host: str = Field(description="the host of the group that it runs on")
    port: int = Field(description="its port there", ge=1024, le=65534)
    control_port: int | None = Field(
        None,
        description="the port on which its hosts drain and return their own servers (default: `port` + 1)",
        ge=1024,
        le=65535,
    )
    image: Annotated[str, rule(_why_not_a_tag)] = Field(
        defaults.GATEWAY_IMAGE, description="HAProxy 2.6 or newer, REPOSITORY:TAG; spark.lock pins the digest"
    )
    publish: Literal["loopback", "lan"] = Field(
        "lan", description="who can reach it: `lan`: all addresses of the host; `loopback`: only the host itself"
    )
    tls: TlsFile | Literal["none"] = Field(description="{certificate: FILE, key: SOURCE}, or none: plain HTTP")
    key: SecretSource | None = Field(
        None,
        description="the API key it requires from clients: a source, e.g. {env: GATEWAY_KEY}; never the key itself",
    )
    clients: dict[ClientName, ClientFile] = Field(
        default_factory=dict,
        max_length=clients.MOST_CLIENTS,
        description="clients with keys and limits of their own, by name; beside `key`, which has no limits",
    )
    affinity: Literal["none", "prefix"] = Field(
        "none",
        description="which of several servers of a model: `none`: the one with the fewest requests; `prefix`: the same "
        "first messages go to the same server, unless it has much more to do than the others",
    )
    not_up: Literal["refuse", "wait"] = Field(
        "refuse",
        description="a request for a model of which no server is up, for it is restarted or asleep: `refuse`: 503; `wait`: it "
        "waits for one, as long as `limits.queue_s`",
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="more names for its models, {NAME: SERVED NAME}, e.g. {claude-sonnet-4-5: qwen3.5-35b}",
    )
    limits: GatewayLimits = Field(
        default_factory=lambda: GatewayLimits.model_validate({}), description="how much it takes at once"
    )
    addresses: dict[str, Address] = Field(
        default_factory=dict, description="where it reaches hosts, by name, if not at their `address`"
    )


def _why_not_a_home(path: str) -> str:
    return "" if path.startswith("/") and ":" not in path else "is not a directory path: start with /, no colons"


Home = Annotated[str, rule(_why_not_a_home)]


class Shared(Strict):
    """Settings that a group gives to its hosts and a host may set itself. A host's own value wins."""

    user: str | None = Field(None, description="the ssh user (default: your ssh configuration)")
    port: int | None = Field(None, description="sshd's port (default: your ssh configuration)", ge=1, le=65535)
    home: Home | None = Field(None, description="the user's home directory on the host, if not /home/USER (or /root)")
    recipe: str | None = Field(None, description="the recipe to serve: a file of recipes/, without .yml")
    serve_port: int | None = Field(
        None, description="publish the server on this port instead of the recipe's", ge=1, le=65535
    )
    registry_mirror: str | None = Field(
        None,
        description="a registry mirror, e.g. mirror.lan:5000; tried first for pulls by digest",
        pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$",
    )
    model_from: str | None = Field(
        None, description="the host to copy the model from instead of the hub; on that host itself: the hub"
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="environment variables on the host: HF_ENDPOINT; HTTPS_PROXY (with a password under `secrets`)",
    )
    secrets: dict[str, SecretSource] = Field(
        default_factory=dict, description="by name, e.g. HF_TOKEN: {env: HF_TOKEN}"
    )
    vars: dict[str, Any] = Field(default_factory=dict, description="variables for playbooks and templates")


Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
Adapter = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _why_not_an_ip_address(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return "is not an IP address, e.g. 192.168.100.10."
    usable = not (found.is_unspecified or found.is_multicast)
    return "" if usable else "is not an address that another host can reach."


class FabricFile(Strict):
    """A host's end of the fast link to the others of its cluster. `invoke cluster.inspect` proposes it."""

    interfaces: list[Interface] = Field(
        description="its network interfaces, both twins of a port: [enp1s0f1np1, enP2p1s0f1np1]",
        min_length=1,
        max_length=8,
    )
    address: Annotated[str, rule(_why_not_an_ip_address)] = Field(description="its address on the first of them")
    adapters: list[Adapter] = Field(
        default_factory=list,
        description="their RDMA adapters, where those are not named after them: [rocep1s0f1, roceP2p1s0f1]",
        max_length=8,
    )


class ClusterFile(Strict):
    """A recipe that the hosts of a group serve together."""

    recipe: str = Field(description="the recipe that they serve together; it says `parallel`")
    head: str = Field(description="the host that answers requests; rank 0")
    port: int | None = Field(
        None, description="where the ranks meet on the head (default: the engine's own)", ge=1024, le=65535
    )
    barrier_port: int = Field(
        defaults.BARRIER_PORT, description="where the runs on the hosts meet on the head", ge=1024, le=65535
    )


def _why_not_a_time(text: str) -> str:
    try:
        units.seconds(text, least_s=60)
    except Refused:
        return "is not a time of a minute or more, e.g. 30m"
    return ""


Minutes = Annotated[str, rule(_why_not_a_time)]


class ServedFile(Strict):
    """One of the recipes that a host serves beside each other or by turns."""

    recipe: str = Field(description="the recipe: a file of recipes/, without .yml")
    port: int | None = Field(
        None, description="publish this server on this port instead of the recipe's", ge=1, le=65535
    )
    wake: Literal["on_request"] | None = Field(
        None,
        description="under `on_demand`: `on_request`: a request at a gateway for it, while it is asleep, wakes it "
        "(default: only `invoke switch` does)",
    )
    sleep_after: Minutes | None = Field(
        None,
        description="with `wake`: after so long without a request, the server whose place it took is awake again, e.g. 30m "
        "(default: it stays)",
    )
    stay_awake: Minutes | None = Field(
        None,
        description="under `on_demand`: once awake, no request wakes another one in its place for so long "
        f"(default: {defaults.STAY_AWAKE})",
    )


def _kind(entry: Any) -> str:
    return "name" if isinstance(entry, str) else "entry"


#: a mistake in an entry is reported for what it is, and not as if a name was expected
Served = Annotated[
    Annotated[str, Tag("name")] | Annotated[ServedFile, Tag("entry")],
    Discriminator(_kind),
]


class HostFile(Shared):
    """hosts/NAME.yml: one host; the file's name is the host's name."""

    address: str | None = Field(None, description="name, IP or ssh alias (default: the host's name)")
    connection: Literal["ssh", "local", "sandbox"] = Field("ssh", description="connection type")
    groups: list[str] = Field(default_factory=list, description="the groups it belongs to")
    fabric: FabricFile | None = Field(None, description="its end of the fast link to the others of its cluster")
    serves: list[Served] | None = Field(
        None,
        description="instead of `recipe`: several recipes beside each other, each with its own port: [qwen3.5-35b, small]",
        min_length=1,
        max_length=8,
    )
    on_demand: list[Served] | None = Field(
        None,
        description="recipes that share memory by turns, at least two: one of them is awake at a time, the first to begin with; "
        "`invoke switch` swaps them",
        min_length=1,
        max_length=8,
    )

    @property
    def several(self) -> bool:
        """True if it lists its recipes instead of naming one."""
        return self.serves is not None or self.on_demand is not None


class GroupFile(Shared):
    """One group of hosts/groups.yml."""

    hosts: list[str] = Field(
        default_factory=list, description="members, besides the hosts that name the group themselves"
    )
    min_serving: int | None = Field(
        None,
        ge=0,
        description="minimum number of hosts of this group that keep serving during a run; "
        "default: 1 when the run includes several hosts of the group",
    )
    cluster: ClusterFile | None = Field(None, description="the hosts of this group serve one recipe together")
    gateway: GatewayFile | None = Field(None, description="one address for the models of this group")
