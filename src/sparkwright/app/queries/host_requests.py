"""Send hosts short requests outside a playbook run, and validate their answers against shapes."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Interface
from typing import Any, TypeVar

from sparkwright import here
from sparkwright.app.connect import Selection
from sparkwright.console.command_output import print_error
from sparkwright.defaults import FORKS
from sparkwright.doctor import fabric
from sparkwright.doctor.host import FIXES
from sparkwright.engines.budget import BUDGET_JSON_SHAPE
from sparkwright.engines.engine import DEFAULT_ENGINE, TITLES
from sparkwright.engines.log.state import FIELDS
from sparkwright.errors import Exit, Failed, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, build_module_request, close_links, convert_error
from sparkwright.gateway.statistics import STATES
from sparkwright.protocol.container import OPTION_SHAPES
from sparkwright.protocol.event_shapes import COUNT, exit_code, text
from sparkwright.protocol.events import Event, build_recap_error, find_recap
from sparkwright.protocol.plan import Plan, Task, new_run_id
from sparkwright.trust.names import COMMIT, DIGEST, check_file_name
from sparkwright.trust.shapes import OptionalField, Shape, line, moment, number, number_between, validate

Answer = Event | SparkwrightError
Parsed = TypeVar("Parsed")


def query_members(
    members: Sequence[Member], build_header: Callable[[Member], dict[str, Any]], event_kind: str
) -> list[Answer]:
    """Query the members in parallel and return each member's first event of a kind, or its error, in the members' order.

    Connections stay open. The caller handles Ctrl-C: the requests leave nothing running on the hosts.
    """
    pool = ThreadPoolExecutor(max_workers=min(FORKS, len(members)))
    try:
        headers = map(build_header, members)
        return list(pool.map(here.bind_folder(query_member), members, headers, itertools.repeat(event_kind)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def query_member(member: Member, header: dict[str, Any], event_kind: str) -> Answer:
    """Return a member's first event of a kind, or its error. A failed connection is reopened by the next request."""
    try:
        for event in member.request(header):
            if event["event"] == event_kind:
                return event
            if event["event"] == "recap":
                return build_recap_error(event)
        return Failed("the host gave no answer.")
    except SparkwrightError as error:
        close_links([member])
        member.link = None
        error.where = "" if error.where == member.host.name else error.where
        return error
    except Exception as error:
        return convert_error(error)


def parse_answer(answer: Answer, parse: Callable[[Event], Parsed]) -> Parsed | SparkwrightError:
    """Return a parsed answer, or the host's error, or the error for an answer that `parse` rejects with ValueError."""
    if isinstance(answer, SparkwrightError):
        return answer
    try:
        return parse(answer)
    except ValueError as error:
        return Failed(f"its answer can't be used: {error}.")
    except Exception as error:
        return convert_error(error)


def request_events(fleet: Fleet, member: Member, header: dict[str, Any]) -> list[Event]:
    """Return the events that answer a request. Raises the error if the host refuses the request with a recap."""
    events = fleet.request(member, header, include_recap=False)
    if recap := find_recap(events):
        raise build_recap_error(recap)
    return events


def query_module(fleet: Fleet, member: Member, name: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run a module in check mode on a host and return its answer. Raises an error with the host's message and exit code."""
    return _module_answer(member, name, fleet.request(member, build_module_request(name, args), include_recap=False))


def run_module(
    fleet: Fleet, member: Member, name: str, args: dict[str, Any], *, exclusive: bool = False, become: bool = False
) -> dict[str, Any]:
    """Run a module on a host and return its answer. Raises an error with the host's message and exit code.

    Args:
        exclusive: hold the host's lock while it runs.
        become: run as root.
    """
    task = Task(id=name, name=name.replace("_", " "), module=name, args=args, become=become)
    plan = Plan(new_run_id(), member.host.name, "Ask", (task,), exclusive=exclusive, server=member.host.server)
    return _module_answer(
        member, name, fleet.request(member, {"verb": "run", "plan": plan.to_json()}, include_recap=False)
    )


def _module_answer(member: Member, module: str, events: Sequence[Event]) -> dict[str, Any]:
    finished_event = next((event for event in events if event["event"] == "task_finished"), None)
    if finished_event is None or finished_event["status"] not in ("ok", "changed"):
        raise build_recap_error(
            find_recap(events), finished_event["msg"] if finished_event else "the host gave no answer."
        )
    data = {
        field: value for field, value in finished_event["data"].items() if field != "attempts"
    }  # added by the task runner
    return validate_answer(module, data, host=member.host.name)


@contextlib.contextmanager
def report_host_error(host: str, codes: list[Any], *, json: bool) -> Iterator[None]:
    """Print one host's error and add its exit code to `codes`, so that the command continues with the next host."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader is gone
    except Exception as error:
        host_error = convert_error(error)
        host_error.where = host_error.where or host
        print_error(host_error, json=json, host=host)
        codes.append(host_error.exit)


def act_on_each(selection: Selection, act: Callable[[Member], Exit], *, json: bool) -> list[Exit]:
    """Call `act` for each host in turn and return the exit codes. Prints errors, and closes the connections."""
    codes: list[Exit] = []
    try:
        for member in selection.fleet.members:
            with report_host_error(member.host.name, codes, json=json):
                codes.append(act(member))
    finally:
        selection.fleet.close()
    return codes


#: login name, which appears in commands for the user
USER_NAME_PATTERN = re.compile(r"[\w.@+-]{1,64}")
#: digest of an image; empty if there is no image
IMAGE_ID_PATTERN = re.compile(f"(?:{DIGEST.pattern})?")
#: seconds since the epoch, as the Docker Engine API writes them
EPOCH_SECONDS_PATTERN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
#: release of the kernel or version of the NVIDIA driver
RELEASE_PATTERN = re.compile(r"[A-Za-z0-9_.+~-]{0,100}")
#: URL from which other hosts download a host's model
MODEL_URL_PATTERN = re.compile(r"https?://[\w.\[\]:-]{1,255}(?:/[\w./-]{0,255})?")


def parse_ipv4(value: Any) -> str:
    """Return an IPv4 address in dotted notation. Raises ValueError if it is not one."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return str(IPv4Address(value))


def parse_cidr(value: Any) -> str:
    """Return an IPv4 address with its prefix length. Raises ValueError if it is not one."""
    if not isinstance(value, str) or not value.isascii():
        raise ValueError("is not text")
    return IPv4Interface(value).with_prefixlen


def require_file_name(value: Any) -> str:
    """Return the path of a file inside a folder. Raises ValueError for an unsafe path."""
    reason = check_file_name(value) if isinstance(value, str) else "is not text"
    if reason:
        raise ValueError(reason)
    return str(value)


FINDING_SHAPE: dict[str, Shape] = {
    "check": line,
    "verdict": frozenset(("ok", "warning", "bad", "unknown")),
    "evidence": text,
    **dict.fromkeys(("fix", "source"), OptionalField(text, "")),
    "repair": OptionalField(frozenset(("", *FIXES)), ""),
}
#: an `EngineState` (engines/log/state.py); engines may add fields
ENGINE_STATE_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(FIELDS, (None, bool, float, line, [object])),
    "evidence": {str: str},
    "stage_s": {str: float},
    "warnings": [str],
}
MODEL_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(("dir", "id", "commit"), line),
    **dict.fromkeys(("files", "size_bytes"), COUNT),
    "changed": [line],
    "used_by": [line],
}
IMAGE_SHAPE: dict[str, Shape] = {"id": line, "names": [line], "frees_bytes": float, "kept": line}
#: an item that `host.clean` can remove; the size is None if unknown
CLEAN_ITEM_SHAPE: dict[str, Shape] = {"kind": line, "name": line, "size_bytes": (None, COUNT), "kept": line}
#: a `Link` from doctor/fabric.py
LINK_SHAPE: dict[str, Shape] = {
    "adapter": fabric.NAME_PATTERN,
    "interface": re.compile(f"(?:{fabric.NAME_PATTERN.pattern})?"),
    **dict.fromkeys(("firmware", "pci"), re.compile(r"[A-Za-z0-9./ ]{0,80}")),
    "active": bool,
    "rate_gbps": number_between(0, 10_000),
    "mtu": COUNT,
    "carrier": (None, bool),
    "addresses": [parse_cidr],
    "gids": [parse_ipv4],
}
#: a compile cache; used_s is in seconds since the epoch, 0 for never
CACHE_SHAPE: dict[str, Shape] = {
    "name": re.compile(r"[0-9a-f]{32}(?:/aside)?"),
    **dict.fromkeys(("container", "image", "model", "kept"), OptionalField(line, "")),
    "why_aside": OptionalField(text, ""),
    "size_bytes": COUNT,
    "used_s": number_between(0, 2**40),
}
LINK_RATE_SHAPE: dict[str, Shape] = {
    "adapter": fabric.NAME_PATTERN,
    "gbps": (None, number_between(0, 10**5)),
    "error": line,
}
LINK_PATH_SHAPE: dict[str, Shape] = {
    "peer": parse_ipv4,
    "interface": LINK_SHAPE["interface"],
    "mtu": COUNT,
    "reached": (None, bool),
}
#: an image's manifest for a platform, as in spark.lock
MANIFEST_SHAPE: dict[str, Shape] = {
    "platform": line,
    **dict.fromkeys(("digest", "config"), DIGEST),
    "size_bytes": COUNT,
}
#: a model's file, as in spark.lock
FILE_SHAPE: dict[str, Shape] = {"path": require_file_name, "size_bytes": COUNT}

#: an upstream server, from gateway/statistics.py
UPSTREAM_SHAPE: dict[str, Shape] = {
    "host": line,
    "state": frozenset(STATES),
    **dict.fromkeys(("running", "requests"), COUNT),
}
#: a model that a gateway routes, from gateway/statistics.py
ROUTED_MODEL_SHAPE: dict[str, Shape] = {
    "model": line,
    **dict.fromkeys(("requests", "running", "queued", "errors"), COUNT),
    "servers": [UPSTREAM_SHAPE],
    "on_demand": OptionalField(bool, False),
}
#: a client's usage, from gateway/clients.py
CLIENT_SHAPE: dict[str, Shape] = {
    "client": line,
    **dict.fromkeys(("requests", "running", "refused", "errors"), COUNT),
    **{
        name: OptionalField(COUNT, 0)
        for name in ("prompt_tokens", "generated_tokens", "estimated", "queue_ms", "tokens_per_day")
    },
}
#: a gateway, from host/gateway/haproxy_sockets.py
GATEWAY_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(("running", "verified"), bool),
    "changed": OptionalField([line], []),
    "certificate_error": OptionalField(line, ""),
    "restarted_s": OptionalField((None, number), None),
    "models": [ROUTED_MODEL_SHAPE],
    "clients": OptionalField([CLIENT_SHAPE], []),
}

#: a container that serves models, in the answer from `survey`
SERVER_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(("name", "image", "model_dir"), line),
    "engine": frozenset(TITLES),
    "port": number_between(1, 65535),
    "models": [line],
    "verified": bool,
}
#: a model's files on a host, in the answer from `survey`
SURVEYED_MODEL_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(("id", "dir"), line),
    "place": frozenset(("own", "folder", "hub cache")),
    "size_bytes": COUNT,
}

#: a cause in a diagnosis
CAUSE_SHAPE: dict[str, Shape] = {
    "cause": text,
    "verdict": line,
    **dict.fromkeys(("evidence", "fix"), OptionalField(text, "")),
}

ANSWER_SHAPES: dict[str, dict[str, Shape]] = {
    "diagnose": {
        "schema": COUNT,
        **dict.fromkeys(("state", "summary"), text),
        "fix": OptionalField(text, ""),
        "exit": exit_code,
        **dict.fromkeys(("tok_per_s", "expected_tok_per_s"), OptionalField((None, number_between(0, 1e6)), None)),
        "expected_by": OptionalField((None, line), None),
        **dict.fromkeys(("container", "gpu"), OptionalField({str: object}, {})),
        "causes": [CAUSE_SHAPE],
        "sandbox": OptionalField(bool, False),
    },
    "serving": {"serving": bool},
    "doctor": {
        "findings": [FINDING_SHAPE],
        "user": USER_NAME_PATTERN,
        "now_s": moment,
        "budget": OptionalField((None, BUDGET_JSON_SHAPE), None),
    },
    "link_rate": {"rates": [LINK_RATE_SHAPE]},
    "fabric": {
        "links": [LINK_SHAPE],
        "findings": [FINDING_SHAPE],
        "paths": [LINK_PATH_SHAPE],
        **dict.fromkeys(("kernel", "driver"), RELEASE_PATTERN),
        "now_s": moment,
    },
    "inspect_server": {
        **dict.fromkeys(("name", "image"), line),
        "models": {str: (None, number_between(1, 2**53))},
        "port": number_between(1, 65535),
        **dict.fromkeys(("loopback", "server_key"), bool),
    },
    "container_settings": {
        **dict.fromkeys(("name", "image", "network"), line),
        "entrypoint": (None, [line]),
        **{key: [str] for key in ("program", "command", "ports", "volumes")},
        "env": {str: str},
        "options": OPTION_SHAPES,
        "running": bool,
    },
    "engine_log": {
        "state": ENGINE_STATE_SHAPE,
        "known": bool,
        "text": str,
        "engine": OptionalField(frozenset(TITLES), DEFAULT_ENGINE),
    },
    "models": {"models": [MODEL_SHAPE]},
    "remove_model": {"dir": line, "freed_bytes": COUNT, "left": COUNT},
    "verify_model": {"dir": line, "wrong": [line], "files": COUNT, "size_bytes": COUNT},
    "prune_images": {"images": [IMAGE_SHAPE], "freed_bytes": float},
    "prune_caches": {"caches": [CACHE_SHAPE], "freed_bytes": COUNT},
    "clean_host": {"items": [CLEAN_ITEM_SHAPE], "busy": line},
    "health_timer": {"elsewhere": [frozenset(("user", "system", "cron"))]},
    "inspect_image": {
        "present": bool,
        **dict.fromkeys(("id", "impostor"), IMAGE_ID_PATTERN),
        **dict.fromkeys(("platform", "host_platform"), line),
        "digests": [DIGEST],
        "layers": [DIGEST],
        "size_bytes": COUNT,
        "free_bytes": (None, COUNT),
        "tools": [line],
        "addresses": [parse_ipv4],
        "names": {"tags": {str: IMAGE_ID_PATTERN}, "nameless": [IMAGE_ID_PATTERN], "at": EPOCH_SECONDS_PATTERN},
        "intake": line,
    },
    "send_image": {"address": line},
    "adopt_image": {"id": IMAGE_ID_PATTERN, "undone": [line]},
    "undo_load": {"undone": [line]},
    "share_model": {"urls": [MODEL_URL_PATTERN]},
    "lock_image": {
        "digest": DIGEST,
        "platforms": OptionalField([line], []),
        **dict.fromkeys(("engine_version", "created"), OptionalField((None, line), None)),
        "size_bytes": OptionalField((None, COUNT), None),
        "manifests": OptionalField([MANIFEST_SHAPE], []),
    },
    "lock_model": {"commit": COMMIT, "files": [FILE_SHAPE]},
    "survey": {
        **dict.fromkeys(("user", "hostname", "architecture"), line),
        "os": (None, line),
        **dict.fromkeys(("memory_bytes", "memory_available_bytes", "disk_free_bytes"), COUNT),
        "gpu": (None, {"name": line, "driver": (None, line)}),
        "docker": {
            "reachable": bool,
            "error": (None, line),
            **dict.fromkeys(("version", "root", "storage_driver"), OptionalField((None, line), None)),
        },
        "ollama": {"reachable": bool, "models": (None, [line]), "version": OptionalField((None, line), None)},
        "sandbox": bool,
        "servers": [SERVER_SHAPE],
        "models": [SURVEYED_MODEL_SHAPE],
    },
    "gateway_state": GATEWAY_SHAPE,
    "gateway_own_key": {"sha256": re.compile("(?:[0-9a-f]{64})?")},
    "bench_cells": {"cells": {str: {str: object}}},
}


def validate_answer(module: str, data: dict[str, Any], *, host: str) -> dict[str, Any]:
    """Return a module's answer, with defaults for missing fields. Raises Failed if it does not match `ANSWER_SHAPES`."""
    try:
        answer: dict[str, Any] = validate(data, ANSWER_SHAPES.get(module, {}), module)
    except ValueError as error:
        raise Failed(f"its answer can't be used: {error}.", where=host) from None
    return answer
