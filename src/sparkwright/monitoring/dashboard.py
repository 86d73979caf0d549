"""The dashboard for import into Grafana, with rows of panels for the fleet, a host, a model and the gateway.

The panels are defined as data below, and a function adds everything else that Grafana needs. The schema version is 39, that of
Grafana 10.4, which newer versions can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkwright.health.record import STATES, severity
from sparkwright.health.textfile import PREFIX
from sparkwright.monitoring.alerts import CLIENTS_JOB, GATEWAY_JOB

TITLE, UID = "sparkwright", "sparkwright-fleet"
SCHEMA_VERSION = 39
COLUMNS, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
#: Grafana's colours for the states, from best to worst
COLOURS = ("green", "dark-blue", "text", "yellow", "blue", "red", "dark-red", "dark-red", "dark-red")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    #: PromQL by legend; `%` stands for the prefix of our metrics, `@` for the selected hosts
    queries: dict[str, str]
    #: Grafana's name of the unit
    unit: str = "short"
    #: Grafana's panel type
    kind: str = "timeseries"
    #: width in the dashboard's 24 columns
    width: int = 8
    #: minimum of the axis
    least: float | None = 0
    #: maximum of the axis
    most: float | None = None


_STATE = " + ".join(f'{severity(state)} * %health_state{{state="{state}"@}}' for state in STATES if severity(state))
_OF_STATE = f"sum by (instance, server) ({_STATE.replace(' + ', ' or ')})"
#: label of the server on a host with several
_SERVER = "{{instance}} {{server}}"
_MODEL = " * on (instance, server) group_left (model) %server_info{@}"
#: selects HAProxy's backends with a model; those whose names begin with a dash hold tables
_IN_JOB = f'{{job="{GATEWAY_JOB}",proxy!~"-.*"}}'
_PROXY, _CLIENT = "{{proxy}}", "{{client}}"


def _of_clients(name: str, function: str = "rate", window: str = "5m") -> str:
    """Return the query for a counter of the gateway's clients."""
    return f'{function}(%client_{name}_total{{job="{CLIENTS_JOB}"}}[{window}])'


_PER_REQUEST = f" / {_of_clients('requests')}"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Fleet": (
        Panel("State", {_SERVER: _OF_STATE}, kind="state-timeline", width=24, least=None),
        Panel("Decode rate of one stream against its baseline",
              {_SERVER: "%decode_tokens_per_second{@} / %decode_baseline_tokens_per_second{@}"}, "percentunit"),
        Panel("Tokens per second, all streams", {_SERVER: "%server_served_tokens_per_second{@}"}),
        Panel("Time of a check's token", {_SERVER: "%server_token_seconds{@}"}, "s"),
    ),
    "Host $instance": (
        Panel("Memory available", {_SERVER: "%memory_available_bytes{@}", "swap {{instance}}": "%swap_used_bytes{@}"}, "bytes"),
        Panel("GPU temperature", {_SERVER: "%gpu_temperature_celsius{@}"}, "celsius"),
        Panel("GPU power", {_SERVER: "%gpu_power_watts{@}"}, "watt"),
        Panel("GPU clock", {_SERVER: "%gpu_sm_clock_hertz{@}"}, "hertz"),
        Panel("GPU busy", {_SERVER: "%gpu_busy_ratio{@}"}, "percentunit", most=1),
        Panel("Disk free", {_SERVER: "%disk_free_bytes{@}"}, "bytes"),
        Panel("Age of the last check", {_SERVER: "time() - %health_check_timestamp_seconds{@}"}, "s"),
        Panel("Restarts by the health check in a day", {_SERVER: "%heal_restarts_last_day{@}"}),
        Panel("Fields that differ from what was verified", {_SERVER: "%drift_fields{@}"}),
    ),
    "Model": (
        Panel("Requests", {f"{state}, {{{{model}}}}": f"sum by (model) (%server_{state}_requests{{@}}{_MODEL})"
                           for state in ("running", "waiting")}),
        Panel("Tokens per second", {"{{model}}": f"sum by (model) (%server_served_tokens_per_second{{@}}{_MODEL})"}),
        Panel("KV cache in use", {f"{{{{model}}}}, {_SERVER}": f"%server_kv_cache_used_ratio{{@}}{_MODEL}"}, "percentunit",
              most=1),
    ),
    "Gateway": (
        Panel("Requests a second", {_PROXY: f"rate(haproxy_backend_http_requests_total{_IN_JOB}[5m])"}, "reqps", width=6),
        Panel("Requests that wait", {_PROXY: f"haproxy_backend_current_queue{_IN_JOB}"}, width=6),
        Panel("Servers up", {_PROXY: f"haproxy_backend_active_servers{_IN_JOB}"}, width=6),
        Panel("Errors a second",
              {_PROXY: f'rate(haproxy_backend_http_responses_total{{job="{GATEWAY_JOB}",code="5xx",proxy!~"-.*"}}[5m])'},
              "reqps", width=6),
    ),
    "Clients of the gateway": (
        Panel("Tokens a second", {f"prompts, {_CLIENT}": _of_clients("prompt_tokens"),
                                  f"generated, {_CLIENT}": _of_clients("generated_tokens")}),
        Panel("Requests a second", {_CLIENT: _of_clients("requests")}, "reqps"),
        Panel("Tokens in a day", {_CLIENT: " + ".join(_of_clients(f"{kind}_tokens", "increase", "1d")
                                                      for kind in ("prompt", "generated"))}),
        Panel("Errors and refused requests a second",
              {f"{kind}, {_CLIENT}": _of_clients(kind) for kind in ("errors", "refused")}, "reqps"),
        Panel("Mean time in the queue", {_CLIENT: _of_clients("queue_seconds") + _PER_REQUEST}, "s"),
        Panel("Share of requests whose tokens are estimated", {_CLIENT: _of_clients("estimated") + _PER_REQUEST},
              "percentunit", most=1),
    ),
}  # fmt: skip


def text() -> str:
    """Return the dashboard's JSON."""
    return json.dumps(_dashboard(), indent=1) + "\n"


def queries() -> list[str]:
    """Return all queries of the dashboard, for all hosts."""
    panels = [panel for row in ROWS.values() for panel in row]
    return [_expr(query).replace("$instance", ".*") for panel in panels for query in panel.queries.values()]


def _dashboard() -> dict[str, Any]:
    return {
        "uid": UID,
        "title": TITLE,
        "tags": ["sparkwright"],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _instance()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    query = f"label_values({PREFIX}health_check_timestamp_seconds, instance)"
    every = {"text": "All", "value": "$__all"}
    about = {"name": "instance", "label": "Host", "type": "query", "datasource": SOURCE, "query": query}
    return {**about, "refresh": 2, "multi": True, "includeAll": True, "current": every, "sort": 1}


def _panels() -> Iterator[dict[str, Any]]:
    ids = iter(range(1, 1000))
    y = 0
    for title, panels in ROWS.items():
        at = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            yield _panel(panel, next(ids), {"h": HEIGHT, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += HEIGHT


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": _expr(expr), "legendFormat": legend}
        for n, (legend, expr) in enumerate(panel.queries.items())
    ]
    shown: dict[str, Any] = {"unit": panel.unit}
    shown |= {} if panel.least is None else {"min": panel.least}
    shown |= {} if panel.most is None else {"max": panel.most}
    if panel.kind == "state-timeline":
        shown["mappings"] = [{"type": "value", "options": _words()}]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": shown, "overrides": []},
        "options": {},
        "targets": targets,
    }


def _words() -> dict[str, dict[str, Any]]:
    return {
        str(severity(state)): {"text": state, "color": colour, "index": severity(state)}
        for state, colour in zip(STATES, COLOURS, strict=True)
    }


def _expr(query: str) -> str:
    label = 'instance=~"$instance"'
    return query.replace("{@}", f"{{{label}}}").replace("@}", f",{label}}}").replace("%", PREFIX)
