"""The laptop's requests to a host, and their parser, which refuses invalid ones.

A request is a JSON line on standard input, with a verb from REQUEST_KINDS:
{"verb": name, ..., "env": {...}, "secrets": {...}, "host": name, "server": container}. `host` is the host's name in the project,
for messages; `server` is the server's container on a host with several servers. The answer consists of events on standard
output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from sparkwright.errors import Refused
from sparkwright.trust import bounds, shapes
from sparkwright.trust.shapes import OptionalField, Shape
from sparkwright.visible import one_line

#: maximum size of a request, far above the size of a plan that lists all files of a large model
MAX_LINE_BYTES = 64 * 2**20
#: time limit for an answer that a host reads from its files; long enough for a host under load
QUICK_TIMEOUT_S = 120.0
#: time limit for an answer that needs the host's Docker Engine, its server or much disk access
LONG_TIMEOUT_S = 600.0
#: time limit for a measurement on a server that is in use
MEASUREMENT_TIMEOUT_S = 1800.0
_VARIABLE_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_text(value: Any) -> str:
    """Check a string for use in a file name, an environment variable or an argument."""
    if "\0" in shapes.text(value):
        raise ValueError("has a NUL character")
    return str(value)


def _check_text_mapping(value: Any) -> dict[str, str]:
    return {_check_text(name): text for name, text in shapes.validate(value, {str: _check_text}, "").items()}


def _check_environment(value: Any) -> dict[str, str]:
    variables = _check_text_mapping(value)
    if not all(map(_VARIABLE_NAME_PATTERN.fullmatch, variables)):
        raise ValueError("has an invalid variable name")
    return variables


_TEXT, _FLAG, _OBJECT = OptionalField(_check_text, ""), OptionalField(bool, False), {str: object}
_SECONDS = OptionalField((None, shapes.number_between(-(10**12), 10**12)), None)
#: fields that all requests may have
COMMON_FIELDS: dict[str, Shape] = {
    "env": OptionalField(_check_environment, {}),
    "secrets": OptionalField(_check_text_mapping, {}),
    "server": _TEXT,
    "host": _TEXT,
}


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A kind of request: the function that answers it, its fields, and its time limit."""

    #: the function that answers, as MODULE.FUNCTION of this package; the module is imported on demand
    function_path: str
    #: shapes of the request's fields, by name
    fields: Mapping[str, Shape] = field(default_factory=dict)
    #: time limit for the complete answer; None if unlimited. A silent host is detected earlier, because a runner writes every two
    #: seconds. The limit is for a host that never stops writing, which would hold up the command and its output for other hosts
    timeout_s: float | None = None
    #: whether the answer ends with a recap, without which the outcome is unknown
    ends_with_recap: bool = False


REQUEST_KINDS: Mapping[str, RequestKind] = {
    # runs; unlimited, because a deploy takes as long as its download
    "run": RequestKind("run.start", {"plan": _OBJECT, "restart": OptionalField(_OBJECT)}, ends_with_recap=True),
    "attach": RequestKind("run.attach", {"run": _TEXT}, ends_with_recap=True),
    "stop": RequestKind("run.stop", {"run": _TEXT}, QUICK_TIMEOUT_S),
    "runs": RequestKind("run.list_runs", {"all": _FLAG}, QUICK_TIMEOUT_S),
    # queries, without run, journal or lock
    "ask": RequestKind(
        "check_requests.ask",
        {"module": _check_text, "args": OptionalField(_OBJECT, {})},
        LONG_TIMEOUT_S,
        ends_with_recap=True,
    ),
    "health": RequestKind(
        "health_check.check", {"smoke": _FLAG, "token_s": _SECONDS}, MEASUREMENT_TIMEOUT_S, ends_with_recap=True
    ),
    "status": RequestKind(
        "status.read_status", {"container": _TEXT, "gateway": _FLAG, "traffic": _FLAG}, QUICK_TIMEOUT_S
    ),
    "checks": RequestKind("status.read_checks", {"since_s": _SECONDS}, QUICK_TIMEOUT_S),
    "history": RequestKind("records.read_history", {}, QUICK_TIMEOUT_S),
    "incident": RequestKind("records.read_incident", {"run": _TEXT}, LONG_TIMEOUT_S),
    "lock": RequestKind("records.read_lock", {}, QUICK_TIMEOUT_S),
    # actions without a run
    "unlock": RequestKind("records.unlock", {"how": _TEXT, "run": _TEXT}, LONG_TIMEOUT_S),
    "clean": RequestKind("records.clean", {"name": _TEXT}, ends_with_recap=True),
}
#: modules that `ask` may run, in check mode
QUESTION_MODULES = frozenset(
    {
        *("bench_cells", "clean_host", "container_settings", "diagnose", "doctor", "engine_log", "fabric"),
        *("gateway_own_key", "gateway_state", "inspect_image", "inspect_server", "link_rate", "models", "ollama_ps"),
        *("prune_caches", "prune_images", "serving", "survey"),
    }
)
#: time limit of a run whose only task is this module
SHORT_RUN_TIMEOUTS_S: Mapping[str, float] = {
    "gateway_own_key": QUICK_TIMEOUT_S,
    "copy_key": QUICK_TIMEOUT_S,
    "undo_load": LONG_TIMEOUT_S,
}


def answer_timeout_s(request: Mapping[str, Any]) -> float | None:
    """Return the time limit for a host's complete answer; None if unlimited."""
    steps: Sequence[Any] = request["plan"].get("steps") or () if request["verb"] == "run" else ()
    if len(steps) == 1:
        return SHORT_RUN_TIMEOUTS_S.get(steps[0].get("module", ""))
    return REQUEST_KINDS[request["verb"]].timeout_s if request["verb"] in REQUEST_KINDS else None


def read(source: IO[bytes]) -> dict[str, Any]:
    """Read a request. Raises Refused with the reason if it is invalid."""
    line = source.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise _refusal(f"it is longer than {MAX_LINE_BYTES} bytes")
    return parse(line)


def parse(line: bytes) -> dict[str, Any]:
    """Parse a request, filling in all fields of its kind. Raises Refused."""
    try:
        request = bounds.parse_bounded_json(line)
    except ValueError:
        raise _refusal("it is not JSON") from None
    if not isinstance(request, dict) or not isinstance(verb := request.get("verb"), str):
        raise _refusal("it has no verb")
    if verb not in REQUEST_KINDS:
        raise _refusal(f"this runner does not know the verb '{one_line(verb, max_chars=40)}'")
    try:
        fields: dict[str, Any] = shapes.validate(request, {**COMMON_FIELDS, **REQUEST_KINDS[verb].fields}, "it")
    except ValueError as error:
        raise _refusal(one_line(str(error), max_chars=200)) from None
    if verb == "ask" and fields["module"] not in QUESTION_MODULES:
        raise _refusal(f"`ask` does not run the module '{one_line(fields['module'], max_chars=40)}'")
    return fields


def _refusal(reason: str) -> Refused:
    return Refused(
        f"invalid request: {reason}.", fix="The laptop and the host probably have different versions: deploy again."
    )
