"""A recipe's network and name options of a container, in docker's spelling: validated and normalized."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from sparkwright.trust.container_words import is_address
from sparkwright.visible import quoted

HOST, NONE, BRIDGE = "host", "none", "bridge"
BUILT_IN = (HOST, NONE, BRIDGE)
GATEWAY = "host-gateway"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOSTNAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


def parts(text: str) -> tuple[str, list[str]]:
    """Return a network's name and the container's aliases there, from NAME or docker's longer form, name=NAME,alias=ALIAS."""
    if "=" not in text:
        return text, []
    pairs = [word.partition("=")[::2] for word in text.split(",")]
    return next((value for key, value in pairs if key == "name"), ""), [value for key, value in pairs if key == "alias"]


def spelled(name: str, aliases: Iterable[str]) -> str:
    """Return the inverse of `parts`, with the aliases in a fixed order."""
    names = sorted(set(aliases))
    return ",".join([f"name={name}", *(f"alias={item}" for item in names)]) if names else name


def network(text: str) -> str:
    """Return why a text is not a valid network; empty if it is.

    `container:NAME` is not: docker keeps it by id, and it would differ at every deploy.
    """
    if not text:
        return ""
    name, aliases = parts(text)
    keys = {word.partition("=")[0] for word in text.split(",")} if "=" in text else set()
    if not _NAME.fullmatch(name) or keys - {"name", "alias"} or not all(map(_NAME.fullmatch, aliases)):
        return f"{quoted(text)} is not a network: write host, a network's name, or name=NETWORK,alias=NAME."
    if name in (*BUILT_IN, "default") and aliases:
        return f"{quoted(text)}: only networks made with `docker network create` know aliases."
    return f"{quoted(text)} is not a network: leave it out for docker's own." if name == "default" else ""


def further_network(text: str) -> str:
    name = parts(text)[0]
    if name in (HOST, NONE) or not text:
        return f"{quoted(text)} is not a network that can be joined beside another."
    return network(text)


def own_names(texts: Iterable[str]) -> list[str]:
    """Return the networks that are not built in, which the user has to create."""
    return [name for name in dict.fromkeys(parts(text)[0] for text in texts if text) if name not in BUILT_IN]


def hostname(text: str) -> str:
    message = f"{quoted(text)} is not a host name: letters, digits, hyphens and dots, at most 63."
    return "" if not text or _HOSTNAME.fullmatch(text) else message


def _host_and_address(text: str) -> tuple[str, str]:
    """Split NAME:ADDRESS, or NAME=ADDRESS, which docker takes since 25."""
    split = min((at for at in (text.find(":"), text.find("=")) if at >= 0), default=len(text))
    return text[:split], text[split + 1 :].removeprefix("[").removesuffix("]")


def extra_host(text: str) -> str:
    name, address = _host_and_address(text)
    if _HOSTNAME.fullmatch(name) and (address == GATEWAY or is_address(address)):
        return ""
    return f"{quoted(text)} is not a host: write NAME:ADDRESS or NAME:{GATEWAY}."


def extra_hosts(texts: Sequence[str]) -> list[str]:
    return [":".join(_host_and_address(text)) for text in texts]


def extra_hosts_alike(texts: Iterable[str] | None) -> list[str]:
    return sorted(set(extra_hosts(list(texts or ()))))


def dns(text: str) -> str:
    return "" if is_address(text) and "[" not in text else f"{quoted(text)} is not a name server's IP address."


def dns_alike(texts: Iterable[str] | None) -> list[str]:
    """Normalize DNS servers, in their order: the first one is asked first."""
    return [str(ipaddress.ip_address(text)) if is_address(text) else text for text in texts or ()]
