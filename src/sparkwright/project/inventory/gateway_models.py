"""Pydantic models of a group's `gateway:` section."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from sparkwright import defaults
from sparkwright.gateway import clients
from sparkwright.project.documents.validation import Strict, rule
from sparkwright.project.inventory.secret_model import SecretSource
from sparkwright.trust.container_words import is_address
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.trust.network_words import hostname


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
