"""Parser of a gateway's configuration files for the stand-in.

Pure. Understands only the lines that gateway/render.py writes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.gateway import operations, render
from sparkwright.gateway.clients import KEYS as NAMED_KEYS
from sparkwright.gateway.model import WAITING
from sparkwright.gateway.statistics import TABLES

#: text before the row of a model in the configuration
LISTED = "%[var(txn.models)],"


class Unread(Exception):
    """The stand-in can't read a folder; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a backend."""

    name: str
    address: str
    port: int
    #: requests that it serves at a time; 0 for no limit
    slots: int
    #: starts in maintenance, until its host returns it
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """A model's servers and their health check."""

    #: path, body and the pattern of a good answer
    check: tuple[str, str, str]
    servers: tuple[Server, ...]
    #: of /v1/models while it is up, a row for each name
    rows: list[Any]
    #: API key of its servers; empty for none
    key: str
    #: requests wait for a server to be up
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """The configuration of a gateway."""

    description: str  #: the gateway's name and the digest of its files
    port: int
    control_port: int
    body_bytes: int
    queue_s: float
    answer_s: float
    check_s: float
    keys: frozenset[str] | None  #: SHA-256 of the clients' keys; None if no key is required
    models: dict[str, str]  #: backend names by model
    backends: dict[str, Backend]
    paths: tuple[str, ...]  #: routed paths whose requests name a model
    #: those of them whose requests are forms
    forms: tuple[str, ...]
    #: patterns of the paths of stored responses, and of those that are read
    kept: str
    read: str
    #: message of the 404 for other paths
    unknown_path: str
    operators: dict[str, str]  #: hosts by the SHA-256 of their keys
    operations: dict[str, str]  #: operations by host, method and URL


def read(files: Mapping[str, str]) -> Files:
    """Return the configuration of files by name. Raises Unread."""
    front, *behind = files.get(render.CONFIG, "").split("\nbackend ")
    behind = [text for text in behind if not text.startswith(TABLES)]
    clients, _, hosts = front.partition("\nfrontend hosts")
    if re.search(r"(?m)^ *bind .* ssl ", front):
        raise Unread("the sandbox's stand-in for HAProxy speaks no TLS: install haproxy, or set `tls: none`.")
    rows = dict(map(_listed, filter(lambda line: LISTED in line, front.splitlines())))
    keys = _pairs(files, render.SERVER_KEYS)
    backends = dict(_backend(text, rows, keys) for text in behind)
    hashes = files.get(render.CLIENT_KEYS)
    return Files(
        description=_first(r"description '(.*)'", front),
        port=int(_first(r"bind \S*:([0-9]+)", clients)),
        control_port=int(_first(r"bind \S*:([0-9]+)", hosts)),
        body_bytes=int(_first(r"req\.body_size gt ([0-9]+)", clients)),
        queue_s=float(_first(r"timeout queue ([0-9]+)s", front)),
        answer_s=float(_first(r"timeout server ([0-9]+)s", front)),
        check_s=float(_first(r" inter ([0-9]+)s", behind[0] if behind else "")),
        keys=None if hashes is None else frozenset((*hashes.split(), *_pairs(files, NAMED_KEYS))),
        models=_pairs(files, render.ROUTES),
        backends=backends,
        paths=tuple(_first(r"!\{ path -m str ([^}]+) \}", clients).split()),
        forms=tuple(_optional(r"acl form path -m str (.*)", clients).split()),
        kept="|".join(_optional(r"acl kept path -m reg (.*)", clients).split()),
        read="|".join(_optional(r"acl read path -m reg (.*)", clients).split()),
        unknown_path=_first(r'"(The gateway has no such path[^"]*)"', clients),
        operators=_pairs(files, operations.OPERATORS),
        operations=_pairs(files, operations.OPERATIONS),
    )


def _backend(text: str, rows: Mapping[str, list[Any]], keys: Mapping[str, str]) -> tuple[str, Backend]:
    name = text.partition("\n")[0]
    words = shlex.split(_first(r"http-check send (.*)", text))
    check = words[words.index("uri") + 1], words[words.index("body") + 1], _first(r"expect rstring (.*)", text)
    found = re.findall(r"(?m)^ *server (\S+) (\S+):([0-9]+)(?: maxconn ([0-9]+))?(?: id [0-9]+)?( disabled)?$", text)
    servers = tuple(Server(host, at, int(port), int(slots or 0), bool(off)) for host, at, port, slots, off in found)
    return name, Backend(check, servers, rows.get(name, []), keys.get(name, ""), f"server {WAITING} " in text)


def _listed(line: str) -> tuple[str, list[Any]]:
    """Return a backend's name, and the rows of /v1/models while it is up."""
    row, _, condition = line.partition(LISTED)[2].partition("' if ")
    try:
        return _first(r"(?:nbsrv|srv_is_up)\(([^/)]+)", condition), json.loads(f"[{row.replace('%%', '%')}]")
    except ValueError:
        raise Unread(
            f"the sandbox's stand-in for HAProxy can't read a row of {render.MODELS} in {render.CONFIG}."
        ) from None


def _optional(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise Unread(
            f"the sandbox's stand-in for HAProxy finds no `{pattern}` in {render.CONFIG}: it reads no other lines."
        )
    return found[1]


def _pairs(files: Mapping[str, str], name: str) -> dict[str, str]:
    rows = (line.partition(" ") for line in files.get(name, "").splitlines())
    return {key: value for key, _, value in rows}
