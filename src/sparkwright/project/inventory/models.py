"""Pydantic models of hosts/*.yml and hosts/groups.yml."""

from __future__ import annotations

import ipaddress
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.gateway import clients
from sparkwright.project.documents.validation import Strict, about, rule
from sparkwright.trust.container_words import is_address
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.trust.process_words import hostname


class SecretSource(Strict):
    """The source of a secret on the laptop: one of an environment variable, a file, a command's output."""

    NAMES_A_SECRET: ClassVar[bool] = True  # messages about it never repeat the value

    env: str | None = about("an environment variable of the laptop", None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    file: str | None = about("a file on the laptop; its content without the trailing newline", None)
    command: list[str] | None = about("a command on the laptop, as a list; its output", None)

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

    certificate: str = about("a PEM file on the laptop: the certificate, then its chain")
    key: SecretSource = about("its private key: a source, e.g. {file: ~/keys/lab.pem}; never the key itself")


class GatewayLimits(Strict):
    """Limits of the gateway: connections, sizes and times."""

    clients: int = about(
        "connections at a time; more wait. One address may have seven eighths of them, and a quarter until it has "
        "sent a valid key",
        defaults.GATEWAY_CLIENTS,
        ge=1,
        le=10000,
    )
    body_mib: int | None = about(
        "the largest request, MiB (default: enough for the longest context served)", None, ge=1, le=64
    )
    queue_s: int = about(
        "how long a request may wait for a free server, seconds", defaults.GATEWAY_QUEUE_S, ge=1, le=3600
    )
    answer_s: int = about(
        "how long a server may send nothing while it answers, seconds", defaults.GATEWAY_ANSWER_S, ge=1, le=86400
    )
    stuck_s: int = about(
        "a server that has requests, and whose engine's own counters show no progress for so many seconds, is down; "
        "0: never",
        defaults.GATEWAY_STUCK_S,
        ge=0,
        le=3600,
    )
    check_s: int = about(
        "seconds between two checks that a server generates a token", defaults.GATEWAY_CHECK_S, ge=1, le=600
    )


class ClientFile(Strict):
    """A client with a key of its own."""

    key: SecretSource = about("its API key: a source, e.g. {env: ALICE_KEY}; never the key itself")
    models: list[str] = about("names of the models that it may use (default: all)", default_factory=list)
    requests_per_minute: int | None = about("maximum number of requests per minute", None, ge=1, le=1_000_000)
    concurrent: int | None = about("maximum number of requests at a time", None, ge=1, le=10_000)
    tokens_per_day: int | None = about(
        "maximum number of prompt and answer tokens together per day (UTC)", None, ge=1, le=1_000_000_000_000
    )
    until: date | None = about("the last day on which its key is valid, e.g. 2027-01-31 (UTC; default: no end)", None)


class GatewayFile(Strict):
    """One address for the models of a group: HAProxy in a container."""

    host: str = about("the host of the group on which it runs")
    port: int = about("its port there", ge=1024, le=65534)
    control_port: int | None = about(
        "the port on which its hosts drain and return their own servers (default: `port` + 1)", None, ge=1024, le=65535
    )
    image: Annotated[str, rule(_why_not_a_tag)] = about(
        "HAProxy 2.6 to 3.0, REPOSITORY:TAG; spark.lock pins the digest", defaults.GATEWAY_IMAGE
    )
    publish: Literal["loopback", "lan"] = about(
        "who can reach it: `lan`: all addresses of the host; `loopback`: only the host itself", "lan"
    )
    tls: TlsFile | Literal["none"] = about("{certificate: FILE, key: SOURCE}, or none: plain HTTP")
    key: SecretSource | None = about(
        "the API key it requires from clients: a source, e.g. {env: GATEWAY_KEY}; never the key itself", None
    )
    clients: dict[ClientName, ClientFile] = about(
        "clients with keys and limits of their own, by name; in addition to `key`, which has no limits",
        default_factory=dict,
        max_length=clients.MOST_CLIENTS,
    )
    affinity: Literal["none", "prefix"] = about(
        "choice among several servers of a model: `none`: the one with the fewest requests; `prefix`: the same "
        "first messages go to the same server, unless it is much busier than the others",
        "none",
    )
    not_up: Literal["refuse", "wait"] = about(
        "requests for a model without a server that is up (it restarts, or is asleep): `refuse`: answer 503; `wait`: "
        "let them wait, for at most `limits.queue_s`",
        "refuse",
    )
    models: dict[str, str] = about(
        "more names for its models, {NAME: SERVED NAME}, e.g. {claude-sonnet-4-5: qwen3.5-35b}", default_factory=dict
    )
    limits: GatewayLimits = about(
        "limits of clients, requests and time", default_factory=lambda: GatewayLimits.model_validate({})
    )
    addresses: dict[str, Address] = about(
        "addresses of hosts for the gateway, by name, if not their `address`", default_factory=dict
    )


def _why_not_a_home(path: str) -> str:
    return "" if path.startswith("/") and ":" not in path else "is not a directory path: start with /, no colons"


Home = Annotated[str, rule(_why_not_a_home)]


class Shared(Strict):
    """Settings that a group gives to its hosts and a host may set itself. A host's own value wins."""

    user: str | None = about("the ssh user (default: your ssh configuration)", None)
    port: int | None = about("sshd's port (default: your ssh configuration)", None, ge=1, le=65535)
    home: Home | None = about("the user's home directory on the host, if not /home/USER (or /root)", None)
    recipe: str | None = about("the recipe to serve: a file of recipes/, without .yml", None)
    serve_port: int | None = about("publish the server on this port instead of the recipe's", None, ge=1, le=65535)
    registry_mirror: str | None = about(
        "a registry mirror, e.g. mirror.lan:5000; tried first for pulls by digest",
        None,
        pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$",
    )
    model_from: str | None = about(
        "the host to copy the model from instead of the hub; on that host itself: the hub", None
    )
    env: dict[str, str] = about(
        "environment variables on the host: HF_ENDPOINT; HTTPS_PROXY (with a password under `secrets`)",
        default_factory=dict,
    )
    secrets: dict[str, SecretSource] = about("by name, e.g. HF_TOKEN: {env: HF_TOKEN}", default_factory=dict)
    vars: dict[str, Any] = about("variables for playbooks and templates", default_factory=dict)


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

    interfaces: list[Interface] = about(
        "its network interfaces, both halves of a port: [enp1s0f1np1, enP2p1s0f1np1]", min_length=1, max_length=8
    )
    address: Annotated[str, rule(_why_not_an_ip_address)] = about("its address on the first of them")
    adapters: list[Adapter] = about(
        "their RDMA adapters, if not named after them: [rocep1s0f1, roceP2p1s0f1]",
        default_factory=list,
        max_length=8,
    )


class ClusterFile(Strict):
    """A recipe that the hosts of a group serve together."""

    recipe: str = about("the recipe that they serve together; it must set `parallel`")
    head: str = about("the host that answers requests; rank 0")
    port: int | None = about("the ranks' master port on the head (default: the engine's own)", None, ge=1024, le=65535)
    barrier_port: int = about(
        "port on the head at which the hosts' runs synchronize", defaults.BARRIER_PORT, ge=1024, le=65535
    )


def _why_not_a_time(text: str) -> str:
    try:
        units.seconds(text, least_s=60)
    except Refused:
        return "is not a time of a minute or more, e.g. 30m"
    return ""


Minutes = Annotated[str, rule(_why_not_a_time)]


class ServedFile(Strict):
    """One of the recipes that a host serves side by side or taking turns."""

    recipe: str = about("the recipe: a file of recipes/, without .yml")
    port: int | None = about("publish this server on this port instead of the recipe's", None, ge=1, le=65535)
    wake: Literal["on_request"] | None = about(
        "under `on_demand`: `on_request`: a request at a gateway for it, while it is asleep, wakes it "
        "(default: only `invoke switch` does)",
        None,
    )
    sleep_after: Minutes | None = about(
        "with `wake`: after this time without a request, the server that it replaced is woken again, e.g. 30m "
        "(default: it stays)",
        None,
    )
    stay_awake: Minutes | None = about(
        "under `on_demand`: once awake, it stays awake for at least this time, whatever is requested "
        f"(default: {defaults.STAY_AWAKE})",
        None,
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

    address: str | None = about("name, IP or ssh alias (default: the host's name)", None)
    connection: Literal["ssh", "local", "sandbox"] = about("connection type", "ssh")
    groups: list[str] = about("the groups it belongs to", default_factory=list)
    fabric: FabricFile | None = about("this host's end of the fast link in its cluster", None)
    serves: list[Served] | None = about(
        "instead of `recipe`: several recipes side by side, each with its own port: [qwen3.5-35b, small]",
        None,
        min_length=1,
        max_length=8,
    )
    on_demand: list[Served] | None = about(
        "recipes that take turns in memory, at least two: one of them is awake at a time, the first to begin with; "
        "`invoke switch` swaps them",
        None,
        min_length=1,
        max_length=8,
    )

    @property
    def several(self) -> bool:
        """True if it lists its recipes instead of naming one."""
        return self.serves is not None or self.on_demand is not None


class GroupFile(Shared):
    """One group of hosts/groups.yml."""

    hosts: list[str] = about("members, in addition to hosts that list the group themselves", default_factory=list)
    min_serving: int | None = about(
        "minimum number of hosts of this group that keep serving during a run; "
        "default: 1 when the run includes several hosts of the group",
        None,
        ge=0,
    )
    cluster: ClusterFile | None = about("the hosts of this group serve one recipe together", None)
    gateway: GatewayFile | None = about("one address for the models of this group", None)
