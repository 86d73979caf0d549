"""The table of the laptop's requests, and their parser. Invalid requests are refused before anything is done.

A request is a JSON line on standard input: {"verb": name in KINDS, ..., "env": {...}, "secrets": {...}, "server": container}.
`server` is the container of the requested server, on a host with several. The answer consists of events on standard output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from sparkwright.errors import Refused
from sparkwright.trust import bounds, shapes
from sparkwright.trust.shapes import Shape, Usual
from sparkwright.visible import one_line

#: size limit of a request, far above a plan with all files of a big model
LINE_BYTES = 64 * 2**20
#: time limits in seconds for answers from a host's files, and from its Docker Engine, server or disks, several times as long as
#: a loaded host needs
QUICK_S, LONG_S = 120.0, 600.0
#: time limit in seconds for a measurement on a server that also serves others
MEASURED_S = 1800.0


def _text(value: Any) -> str:
    """Check a text that can be used in a file name, a variable or an argument."""
    if "\0" in shapes.text(value):
        raise ValueError("has a NUL")
    return str(value)


def _texts(value: Any) -> dict[str, str]:
    """Check an object of texts."""
    return {_text(name): text for name, text in shapes.fitted(value, {str: _text}, "").items()}


def _environment(value: Any) -> dict[str, str]:
    """Check environment variables."""
    if not all(map(_VARIABLE.fullmatch, found := _texts(value))):
        raise ValueError("has a name that is not a variable's")
    return found


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT, _FLAG, _OBJECT = Usual(_text, ""), Usual(bool, False), {str: object}
_SECONDS = Usual((None, shapes.within(-(10**12), 10**12)), None)
#: fields that all requests may have
COMMON: dict[str, Shape] = {"env": Usual(_environment, {}), "secrets": Usual(_texts, {}), "server": _TEXT}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request."""

    #: function in this package that answers it, which is imported on use
    function: str
    #: shapes of the fields
    fields: Mapping[str, Shape] = field(default_factory=dict)
    #: time limit for the host's whole answer in seconds; None for no limit. Silence is detected anyway, as a runner writes every
    #: two seconds, but a host that never stops writing would hold up a command and the rows of all other hosts
    limit_s: float | None = None
    #: True if the answer ends with a recap, without which the outcome is unknown
    recap: bool = False


KINDS: Mapping[str, Kind] = {
    # runs, which have no limit because a deploy takes as long as its download
    "run": Kind("run.start", {"plan": _OBJECT, "restart": Usual(_OBJECT)}, recap=True),
    "attach": Kind("run.attach", {"run": _TEXT}, recap=True),
    "stop": Kind("run.stop", {"run": _TEXT}, QUICK_S),
    "runs": Kind("run.kept", {"all": _FLAG}, QUICK_S),
    # questions, which need no run, journal or lock
    "ask": Kind("questions.ask", {"module": _text, "args": Usual(_OBJECT, {})}, LONG_S, recap=True),
    "health": Kind("health_check.check", {"smoke": _FLAG, "token_s": _SECONDS}, MEASURED_S, recap=True),
    "status": Kind("status.read_status", {"container": _TEXT, "gateway": _FLAG, "traffic": _FLAG}, QUICK_S),
    "checks": Kind("status.read_checks", {"since_s": _SECONDS}, QUICK_S),
    "history": Kind("records.read_history", {}, QUICK_S),
    "incident": Kind("records.read_incident", {"run": _TEXT}, LONG_S),
    "lock": Kind("records.read_lock", {}, QUICK_S),
    # actions that are not recorded as runs
    "unlock": Kind("records.unlock", {"how": _TEXT, "run": _TEXT}, LONG_S),
    "clean": Kind("records.clean", {"name": _TEXT}, recap=True),
}
#: modules that `ask` runs in check mode, in which they change nothing, and report what they would remove
QUESTIONS = frozenset(
    {
        *("bench_cells", "clean_host", "container_settings", "diagnose", "doctor", "engine_log", "fabric"),
        *("gateway_own_key", "gateway_state", "inspect_image", "inspect_server", "link_rate", "models", "ollama_ps"),
        *("prune_caches", "prune_images", "serving", "survey"),
    }
)
#: time limit in seconds for a run whose only task is one of these modules
SHORT_RUNS: Mapping[str, float] = {"gateway_own_key": QUICK_S, "copy_key": QUICK_S, "undo_load": LONG_S}


def limit_s(request: Mapping[str, Any]) -> float | None:
    """Return the time limit for a host's whole answer in seconds, or None for no limit."""
    steps: Sequence[Any] = request["plan"].get("steps") or () if request["verb"] == "run" else ()
    if len(steps) == 1:
        return SHORT_RUNS.get(steps[0].get("module", ""))
    return KINDS[request["verb"]].limit_s if request["verb"] in KINDS else None


def read(source: IO[bytes]) -> dict[str, Any]:
    """Read a request. Raises Refused with the reason if it is invalid."""
    line = source.readline(LINE_BYTES + 1)
    if len(line) > LINE_BYTES:
        raise _refused(f"it is longer than {LINE_BYTES} bytes")
    return parsed(line)


def parsed(line: bytes) -> dict[str, Any]:
    """Parse a request, filling in all fields of its kind. Raises Refused."""
    try:
        request = bounds.parsed(line)
    except ValueError:
        raise _refused("it is not JSON") from None
    if not isinstance(request, dict) or not isinstance(verb := request.get("verb"), str):
        raise _refused("it has no verb")
    if verb not in KINDS:
        raise _refused(f"'{one_line(verb, at_most=40)}' is not a verb of this runner")
    try:
        found: dict[str, Any] = shapes.fitted(request, {**COMMON, **KINDS[verb].fields}, "it")
    except ValueError as error:
        raise _refused(one_line(str(error), at_most=200)) from None
    if verb == "ask" and found["module"] not in QUESTIONS:
        raise _refused(f"'{one_line(found['module'], at_most=40)}' is not a question of this runner")
    return found


def _refused(why: str) -> Refused:
    return Refused(f"invalid request: {why}.", fix="Laptop and host have different versions: deploy again.")
