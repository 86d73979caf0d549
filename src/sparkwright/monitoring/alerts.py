"""The alert rules, as a rules file for Prometheus. Each links to its section in docs/alerts.md as its runbook.

The limits are those of the health check, so that alerts and check records never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.defaults import HEALTH_INTERVAL
from sparkwright.health.judging.observation import Limits
from sparkwright.health.textfile import PREFIX
from sparkwright.health.webhook_formats import RUNBOOK_URL
from sparkwright.measure.throughput import MAX_TOLERANCE
from sparkwright.units import parse_duration

_LIMITS = Limits()
#: age of the last check, in seconds, above which checks count as stopped: three default intervals
MAX_CHECK_AGE_S = 3 * round(parse_duration(HEALTH_INTERVAL))
#: share of the host's baseline below which a decode rate is low, regardless of the baseline's spread
SLOW_SHARE = 1 - MAX_TOLERANCE
#: name of Prometheus's scrape job for gateways
GATEWAY_JOB = "sparkwright-gateway"
#: name of the scrape job for the usage of gateways' clients
CLIENTS_JOB = "sparkwright-gateway-clients"
#: name of the scrape job for node_exporter on the hosts
NODE_JOB = "sparkwright-hosts"

HEADER = """\
# Written by `sparkwright monitoring.install`. The label `instance`, from the scrape of node_exporter, identifies the host.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule."""

    #: name of the alert, and of its section in docs/alerts.md
    name: str
    #: PromQL expression
    expr: str
    #: how long the expression must hold
    for_: str
    #: critical (requests fail), warning (check today) or info
    severity: str
    #: sentence, as a Prometheus template
    summary: str

    def rule(self, runbook_url: str) -> dict[str, Any]:
        """Return the alert as a rule of a rules file. `runbook_url` is the URL of the page with its section."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": f"{runbook_url}#{self.name.lower()}"},
        }


_GATEWAY_SELECTOR = f'job="{GATEWAY_JOB}"'
#: alerts as (name without `Sparkwright`, how long it must hold, severity, PromQL, summary), where `%` stands for the prefix of
#: our metrics, `#` for the host, and `@` for the host with the server's name if it has several servers
_ALERT_ROWS = (
    ("ServerDown", "1m", "critical", '%health_state{state=~"down|wedged|stalled|crash-looping"} == 1',
     "The server on @ is {{ $labels.state }}."),
    ("CheckMissing", "1m", "critical", f"time() - %health_check_timestamp_seconds > {MAX_CHECK_AGE_S}",
     "The server on @ was last checked {{ $value | humanizeDuration }} ago."),
    ("HostMissing", "5m", "critical",
     f'(max by (instance) (up{{job="{NODE_JOB}"}}) or max by (instance) (%health_check_timestamp_seconds offset 1h))'
     " unless max by (instance) (%health_check_timestamp_seconds)", "# has no sparkwright metrics."),
    ("ServerDegraded", "15m", "warning", '%health_state{state="degraded"} == 1', "The server on @ is degraded."),
    ("Flapping", "10m", "warning", "%health_flapping == 1", "The server on @ is flapping."),
    ("Healed", "0m", "warning", "%heal_restarts_last_day >= 3",
     "The health check has restarted the server on # {{ $value }} times in a day."),
    ("Slow", "0m", "warning", f"%decode_tokens_per_second < {SLOW_SHARE} * %decode_baseline_tokens_per_second",
     "The server on @ generates {{ $value | humanize }} tok/s to one stream, which is below its baseline."),
    ("Queue", "30m", "info", "%server_waiting_requests > 0", "{{ $value }} requests are waiting at @."),
    ("MemoryLow", "5m", "warning",
     f"%memory_available_bytes < {_LIMITS.available_bytes} unless %memory_available_bytes >= 0.5 * %memory_verified_bytes",
     "# has {{ $value | humanize1024 }}B of memory left."),
    ("MemoryGrowing", "0m", "warning", "%memory_growing == 1",
     "The memory of the server on @ has grown; if it grows as much again, the host's memory is exhausted."),
    ("DiskLow", "5m", "warning", f"%disk_free_bytes < {_LIMITS.disk_free_bytes}",
     "# has {{ $value | humanize1024 }}B of disk left."),
    ("Hot", "10m", "warning", f"%gpu_temperature_celsius > {_LIMITS.temperature_c:g}", "The GPU of # is at {{ $value }} °C."),
    ("Drift", "1h", "info", "%drift_fields > 0", "What runs on @ differs from what was verified."),
    ("GatewayDown", "2m", "critical", f"up{{{_GATEWAY_SELECTOR}}} == 0", "The gateway # does not answer."),
    ("GatewayModelDown", "2m", "critical",  # a backend with a dash contains a table
     f'haproxy_backend_active_servers{{{_GATEWAY_SELECTOR},proxy!~"-.*"}} == 0',
     "The gateway on # has no server for {{ $labels.proxy }}."),
)  # fmt: skip
_HOST_TEMPLATE = "{{ $labels.instance }}"
_SERVER_TEMPLATE = _HOST_TEMPLATE + "{{ with $labels.server }} ({{ . }}){{ end }}"

ALERTS = tuple(
    Alert(
        f"Sparkwright{name}",
        expr.replace("%", PREFIX),
        for_,
        severity,
        summary.replace("@", _SERVER_TEMPLATE).replace("#", _HOST_TEMPLATE),
    )
    for name, for_, severity, expr, summary in _ALERT_ROWS
)


def render_rules(runbook_url: str = "") -> str:
    """Return the rules file. `runbook_url` is the URL of docs/alerts.md for the links, by default the published one."""
    groups = [{"name": "sparkwright", "rules": [alert.rule(runbook_url or RUNBOOK_URL) for alert in ALERTS]}]
    return HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=130)
