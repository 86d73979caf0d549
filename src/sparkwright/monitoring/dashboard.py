"""The dashboard to import into Grafana, with rows of panels for the fleet, a host, a model, the gateway and its clients.

The panels are defined as data below, and a function adds the other fields of Grafana's schema.
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
#: version of Grafana's dashboard schema: that of Grafana 10.4, which newer versions can read
SCHEMA_VERSION = 39
GRID_COLUMNS, PANEL_HEIGHT = 24, 8
DATASOURCE = {"type": "prometheus", "uid": "${source}"}
SOURCE_VARIABLE = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
#: Grafana's colours for the states, from best to worst
STATE_COLOURS = ("green", "dark-blue", "text", "yellow", "blue", "red", "dark-red", "dark-red", "dark-red")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    #: PromQL by legend; `%` stands for the prefix of our metrics, `@` for the selected hosts
    queries: dict[str, str]
    #: Grafana's name for the unit
    unit: str = "short"
    #: Grafana's panel type
    kind: str = "timeseries"
    #: width in the dashboard's 24 columns
    width: int = 8
    #: minimum of the axis
    minimum: float | None = 0
    #: maximum of the axis
    maximum: float | None = None


_STATE_TERMS = [f'{severity(state)} * %health_state{{state="{state}"@}}' for state in STATES if severity(state)]
_STATE_QUERY = f"sum by (instance, server) ({' or '.join(_STATE_TERMS)})"
#: legend of a server: its host and, if the host has several servers, its name
_SERVER_LEGEND = "{{instance}} {{server}}"
#: joins a query with the label `model` of the server
_JOIN_MODEL_LABEL = " * on (instance, server) group_left (model) %server_info{@}"
#: selects HAProxy's backends that serve a model; those whose names begin with a dash only hold stick tables
_BACKEND_SELECTOR = f'{{job="{GATEWAY_JOB}",proxy!~"-.*"}}'
_PROXY_LEGEND, _CLIENT_LEGEND = "{{proxy}}", "{{client}}"


def _client_query(name: str, function: str = "rate", window: str = "5m") -> str:
    """Return the query for a counter of the gateway's clients."""
    return f'{function}(%client_{name}_total{{job="{CLIENTS_JOB}"}}[{window}])'


_PER_CLIENT_REQUEST = f" / {_client_query('requests')}"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Fleet": (
        Panel("State", {_SERVER_LEGEND: _STATE_QUERY}, kind="state-timeline", width=24, minimum=None),
        Panel("Decode rate of one stream against its baseline",
              {_SERVER_LEGEND: "%decode_tokens_per_second{@} / %decode_baseline_tokens_per_second{@}"}, "percentunit"),
        Panel("Tokens per second, all streams", {_SERVER_LEGEND: "%server_served_tokens_per_second{@}"}),
        Panel("Health check: time per token", {_SERVER_LEGEND: "%server_token_seconds{@}"}, "s"),
    ),
    "Host $instance": (
        Panel("Memory available",
              {_SERVER_LEGEND: "%memory_available_bytes{@}", "swap {{instance}}": "%swap_used_bytes{@}"}, "bytes"),
        Panel("GPU temperature", {_SERVER_LEGEND: "%gpu_temperature_celsius{@}"}, "celsius"),
        Panel("GPU power", {_SERVER_LEGEND: "%gpu_power_watts{@}"}, "watt"),
        Panel("GPU clock", {_SERVER_LEGEND: "%gpu_sm_clock_hertz{@}"}, "hertz"),
        Panel("GPU busy", {_SERVER_LEGEND: "%gpu_busy_ratio{@}"}, "percentunit", maximum=1),
        Panel("Disk free", {_SERVER_LEGEND: "%disk_free_bytes{@}"}, "bytes"),
        Panel("Age of the last check", {_SERVER_LEGEND: "time() - %health_check_timestamp_seconds{@}"}, "s"),
        Panel("Restarts by the health check in a day", {_SERVER_LEGEND: "%heal_restarts_last_day{@}"}),
        Panel("Configuration drift (fields)", {_SERVER_LEGEND: "%drift_fields{@}"}),
    ),
    "Model": (
        Panel("Requests",
              {f"{state}, {{{{model}}}}": f"sum by (model) (%server_{state}_requests{{@}}{_JOIN_MODEL_LABEL})"
               for state in ("running", "waiting")}),
        Panel("Tokens per second",
              {"{{model}}": f"sum by (model) (%server_served_tokens_per_second{{@}}{_JOIN_MODEL_LABEL})"}),
        Panel("KV cache in use",
              {f"{{{{model}}}}, {_SERVER_LEGEND}": f"%server_kv_cache_used_ratio{{@}}{_JOIN_MODEL_LABEL}"},
              "percentunit", maximum=1),
    ),
    "Gateway": (
        Panel(
            "Requests a second", {_PROXY_LEGEND: f"rate(haproxy_backend_http_requests_total{_BACKEND_SELECTOR}[5m])"},
            "reqps", width=6,
        ),
        Panel("Waiting requests", {_PROXY_LEGEND: f"haproxy_backend_current_queue{_BACKEND_SELECTOR}"}, width=6),
        Panel("Servers up", {_PROXY_LEGEND: f"haproxy_backend_active_servers{_BACKEND_SELECTOR}"}, width=6),
        Panel("Errors a second",
              {_PROXY_LEGEND: f'rate(haproxy_backend_http_responses_total{{job="{GATEWAY_JOB}",code="5xx",'
                              'proxy!~"-.*"}[5m])'},
              "reqps", width=6),
    ),
    "Clients of the gateway": (
        Panel("Tokens a second", {f"prompts, {_CLIENT_LEGEND}": _client_query("prompt_tokens"),
                                  f"generated, {_CLIENT_LEGEND}": _client_query("generated_tokens")}),
        Panel("Requests a second", {_CLIENT_LEGEND: _client_query("requests")}, "reqps"),
        Panel("Tokens in a day", {_CLIENT_LEGEND: " + ".join(_client_query(f"{kind}_tokens", "increase", "1d")
                                                      for kind in ("prompt", "generated"))}),
        Panel("Errors and refused requests a second",
              {f"{kind}, {_CLIENT_LEGEND}": _client_query(kind) for kind in ("errors", "refused")}, "reqps"),
        Panel("Mean time in the queue", {_CLIENT_LEGEND: _client_query("queue_seconds") + _PER_CLIENT_REQUEST}, "s"),
        Panel("Share of requests whose tokens are estimated",
              {_CLIENT_LEGEND: _client_query("estimated") + _PER_CLIENT_REQUEST}, "percentunit", maximum=1),
    ),
}  # fmt: skip


def render_dashboard() -> str:
    """Return the dashboard's JSON."""
    return json.dumps(_build_dashboard(), indent=1) + "\n"


def list_queries() -> list[str]:
    """Return all queries of the dashboard, for all hosts."""
    panels = [panel for row in ROWS.values() for panel in row]
    return [_expand_query(query).replace("$instance", ".*") for panel in panels for query in panel.queries.values()]


def _build_dashboard() -> dict[str, Any]:
    return {
        "uid": UID,
        "title": TITLE,
        "tags": ["sparkwright"],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [SOURCE_VARIABLE, _instance_variable()]},
        "panels": list(_build_panels()),
    }


def _instance_variable() -> dict[str, Any]:
    query = f"label_values({PREFIX}health_check_timestamp_seconds, instance)"
    all_option = {"text": "All", "value": "$__all"}
    variable = {"name": "instance", "label": "Host", "type": "query", "datasource": DATASOURCE, "query": query}
    return {**variable, "refresh": 2, "multi": True, "includeAll": True, "current": all_option, "sort": 1}


def _build_panels() -> Iterator[dict[str, Any]]:
    ids = iter(range(1, 1000))
    y = 0
    for title, panels in ROWS.items():
        position = {"h": 1, "w": GRID_COLUMNS, "x": 0, "y": y}
        yield {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": position, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > GRID_COLUMNS:
                x, y = 0, y + PANEL_HEIGHT
            yield _build_panel(panel, next(ids), {"h": PANEL_HEIGHT, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += PANEL_HEIGHT


def _build_panel(panel: Panel, panel_id: int, position: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": DATASOURCE, "expr": _expand_query(expr), "legendFormat": legend}
        for n, (legend, expr) in enumerate(panel.queries.items())
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    defaults |= {} if panel.minimum is None else {"min": panel.minimum}
    defaults |= {} if panel.maximum is None else {"max": panel.maximum}
    if panel.kind == "state-timeline":
        defaults["mappings"] = [{"type": "value", "options": _state_mappings()}]
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": targets,
    }


def _state_mappings() -> dict[str, dict[str, Any]]:
    return {
        str(severity(state)): {"text": state, "color": colour, "index": severity(state)}
        for state, colour in zip(STATES, STATE_COLOURS, strict=True)
    }


def _expand_query(query: str) -> str:
    label = 'instance=~"$instance"'
    return query.replace("{@}", f"{{{label}}}").replace("@}", f",{label}}}").replace("%", PREFIX)
