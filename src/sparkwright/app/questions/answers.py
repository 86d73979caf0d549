"""The valid answers of modules that are asked for data: a table by module, checked in one place before the answers are used."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from sparkwright.doctor import fabric
from sparkwright.doctor.host import FIXES
from sparkwright.engines.budget import JSON_SHAPE
from sparkwright.engines.engine import TITLES, USUAL
from sparkwright.engines.log.state import FIELDS
from sparkwright.errors import Failed
from sparkwright.gateway.statistics import STATES
from sparkwright.protocol.event_reader import COUNT, text
from sparkwright.trust.names import COMMIT, DIGEST, why_not_a_file
from sparkwright.trust.shapes import Shape, Usual, fitted, line, moment, within

#: a user's name in a command that is shown
USER = re.compile(r"[\w.@+-]{1,64}")
#: digest of an image; empty for none
IMAGE_ID = re.compile(f"(?:{DIGEST.pattern})?")
#: seconds since the epoch, in Docker Engine's notation
MOMENT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
#: release of a kernel
RELEASE = re.compile(r"[A-Za-z0-9_.+~-]{0,100}")
#: URL at which a host hands out a model
URL = re.compile(r"https?://[\w.\[\]:-]{1,255}(?:/[\w./-]{0,255})?")


def ipv4(value: Any) -> str:
    """A shape: an IPv4 address in dotted notation."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return str(IPv4Address(value))


def cidr(value: Any) -> str:
    """A shape: an IPv4 address with its prefix length."""
    if not isinstance(value, str) or not value.isascii():
        raise ValueError("is not text")
    return IPv4Interface(value).with_prefixlen


def a_file(value: Any) -> str:
    """A shape: the name of a file inside a folder."""
    why = why_not_a_file(value) if isinstance(value, str) else "is not text"
    if why:
        raise ValueError(why)
    return str(value)


FINDING: dict[str, Shape] = {
    "check": line,
    "verdict": frozenset(("ok", "warning", "bad", "unknown")),
    "evidence": text,
    **dict.fromkeys(("fix", "source"), Usual(text, "")),
    "repair": Usual(frozenset(("", *FIXES)), ""),
}
#: an EngineState (engines/log/state.py); an engine may add fields
STATE: dict[str, Shape] = {
    **dict.fromkeys(FIELDS, (None, bool, float, line, [object])),
    "evidence": {str: str},
    "stage_s": {str: float},
    "warnings": [str],
}
MODEL: dict[str, Shape] = {
    **dict.fromkeys(("dir", "id", "commit"), line),
    **dict.fromkeys(("files", "size_bytes"), COUNT),
    "changed": [line],
    "used_by": [line],
}
IMAGE: dict[str, Shape] = {"id": line, "names": [line], "frees_bytes": float, "kept": line}
#: of host.clean; None: unknown
ITEM: dict[str, Shape] = {"kind": line, "name": line, "size_bytes": (None, COUNT), "kept": line}
#: of doctor/fabric.py
LINK: dict[str, Shape] = {
    "adapter": fabric.NAME,
    "interface": re.compile(f"(?:{fabric.NAME.pattern})?"),
    **dict.fromkeys(("firmware", "pci"), re.compile(r"[A-Za-z0-9./ ]{0,80}")),
    "active": bool,
    "rate_gbps": within(0, 10_000),
    "mtu": COUNT,
    "carrier": (None, bool),
    "addresses": [cidr],
    "gids": [ipv4],
}
#: a compile cache; used_s is in seconds since the epoch, 0 for never
CACHE: dict[str, Shape] = {
    "name": re.compile(r"[0-9a-f]{32}(?:/aside)?"),
    **dict.fromkeys(("container", "image", "model", "kept"), Usual(line, "")),
    "why_aside": Usual(text, ""),
    "size_bytes": COUNT,
    "used_s": within(0, 2**40),
}
RATE: dict[str, Shape] = {"adapter": fabric.NAME, "gbps": (None, within(0, 10**5)), "error": line}
PATH: dict[str, Shape] = {
    "peer": ipv4,
    "interface": LINK["interface"],
    "mtu": COUNT,
    "reached": (None, bool),
}
#: entries of spark.lock for an image and a model
MANIFEST: dict[str, Shape] = {"platform": line, **dict.fromkeys(("digest", "config"), DIGEST), "size_bytes": COUNT}
FILE: dict[str, Shape] = {"path": a_file, "size_bytes": COUNT}

#: of gateway/statistics.py
UPSTREAM: dict[str, Shape] = {"host": line, "state": frozenset(STATES), **dict.fromkeys(("running", "requests"), COUNT)}
ROUTED: dict[str, Shape] = {
    "model": line,
    **dict.fromkeys(("requests", "running", "queued", "errors"), COUNT),
    "servers": [UPSTREAM],
    "on_demand": Usual(bool, False),
}
#: of gateway/clients.py
CLIENT: dict[str, Shape] = {
    "client": line,
    **dict.fromkeys(("requests", "running", "refused", "errors"), COUNT),
    **{
        name: Usual(COUNT, 0)
        for name in ("prompt_tokens", "generated_tokens", "estimated", "queue_ms", "tokens_per_day")
    },
}
#: of host/gateway/now.py
GATEWAY: dict[str, Shape] = {
    **dict.fromkeys(("running", "verified"), bool),
    "stand_in": Usual(bool, False),
    "changed": Usual([line], []),
    "models": [ROUTED],
    "clients": Usual([CLIENT], []),
}

#: of `survey`: a container that serves models, and a model on the disk
SERVER: dict[str, Shape] = {
    **dict.fromkeys(("name", "image", "model_dir"), line),
    "engine": frozenset(TITLES),
    "port": within(1, 65535),
    "models": [line],
    "verified": bool,
}
FOUND_MODEL: dict[str, Shape] = {
    **dict.fromkeys(("id", "dir"), line),
    "place": frozenset(("own", "folder", "hub cache")),
    "size_bytes": COUNT,
}

ANSWERS: dict[str, dict[str, Shape]] = {
    "doctor": {"findings": [FINDING], "user": USER, "now_s": moment, "budget": Usual((None, JSON_SHAPE), None)},
    "link_rate": {"rates": [RATE]},
    "fabric": {
        "links": [LINK],
        "findings": [FINDING],
        "paths": [PATH],
        "kernel": RELEASE,
        "driver": RELEASE,
        "now_s": moment,
    },
    "inspect_server": {
        **dict.fromkeys(("name", "image"), line),
        "models": {str: (None, within(1, 2**53))},
        "port": within(1, 65535),
        **dict.fromkeys(("loopback", "server_key"), bool),
    },
    "container_settings": {
        **dict.fromkeys(("name", "image", "network"), line),
        "entrypoint": (None, [line]),
        **{key: [str] for key in ("program", "command", "ports", "volumes")},
        "env": {str: str},
        "options": {str: object},
        "running": bool,
    },
    "engine_log": {"state": STATE, "known": bool, "text": str, "engine": Usual(frozenset(TITLES), USUAL)},
    "models": {"models": [MODEL]},
    "remove_model": {"dir": line, "freed_bytes": COUNT, "left": COUNT},
    "verify_model": {"dir": line, "wrong": [line], "files": COUNT, "size_bytes": COUNT},
    "prune_images": {"images": [IMAGE], "freed_bytes": float},
    "prune_caches": {"caches": [CACHE], "freed_bytes": COUNT},
    "clean_host": {"items": [ITEM], "busy": line},
    "health_timer": {"elsewhere": [frozenset(("user", "system", "cron"))]},
    "inspect_image": {
        "present": bool,
        **dict.fromkeys(("id", "impostor"), IMAGE_ID),
        **dict.fromkeys(("platform", "host_platform"), line),
        "digests": [DIGEST],
        "layers": [DIGEST],
        "size_bytes": COUNT,
        "free_bytes": (None, COUNT),
        "tools": [line],
        "addresses": [ipv4],
        "names": {"tags": {str: IMAGE_ID}, "nameless": [IMAGE_ID], "at": MOMENT},
        "intake": line,
    },
    "send_image": {"address": line},
    "adopt_image": {"id": IMAGE_ID, "undone": [line]},
    "undo_load": {"undone": [line]},
    "share_model": {"urls": [URL]},
    "lock_image": {
        "digest": DIGEST,
        "platforms": Usual([line], []),
        **dict.fromkeys(("engine_version", "created"), Usual((None, line), None)),
        "size_bytes": Usual((None, COUNT), None),
        "manifests": Usual([MANIFEST], []),
    },
    "lock_model": {"commit": COMMIT, "files": [FILE]},
    "survey": {
        **dict.fromkeys(("user", "hostname", "architecture"), line),
        "os": (None, line),
        **dict.fromkeys(("memory_bytes", "memory_available_bytes", "disk_free_bytes"), COUNT),
        "gpu": (None, {"name": line, "driver": (None, line)}),
        "docker": {"reachable": bool, "version": Usual((None, line), None), "error": (None, line)},
        "ollama": {"reachable": bool, "models": (None, [line])},
        "sandbox": bool,
        "servers": [SERVER],
        "models": [FOUND_MODEL],
    },
    "gateway_state": GATEWAY,
    "gateway_own_key": {"sha256": re.compile("(?:[0-9a-f]{64})?")},
    "bench_cells": {"cells": {str: {str: object}}},
}


def checked(module: str, data: dict[str, Any], *, host: str) -> dict[str, Any]:
    """Return a module's answer if it has the form that the table requires. Raises Failed otherwise."""
    try:
        found: dict[str, Any] = fitted(data, ANSWERS.get(module, {}), module)
    except ValueError as error:
        raise Failed(f"its answer can't be used: {error}.", where=host) from None
    return found
