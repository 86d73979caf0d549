"""The alert rules, as a rules file of Prometheus. The runbook link of each leads to its section of docs/alerts.md.

Limits are those of the health check, so that alerts and check records never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.health.judging.observation import Limits
from sparkwright.health.notify_shapes import RUNBOOKS
from sparkwright.health.textfile import PREFIX
from sparkwright.measure.smoke import MAX_TOLERANCE

_LIMITS = Limits()
#: age at which a check counts as stopped: three default intervals
CHECK_LATE_S = 900
#: share of the host's own baseline below which a decode rate is low, whatever its spread
SLOW = 1 - MAX_TOLERANCE
#: name of Prometheus' scrape job for gateways
GATEWAY_JOB = "sparkwright-gateway"
CLIENTS_JOB = "sparkwright-gateway-clients"
#: name of the job for node_exporter on the hosts
NODE_JOB = "sparkwright-hosts"

HEAD = """\
# Written by `sparkwright monitoring.install`. Hosts are told apart by `instance`, as node_exporter's scrape names them.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of Prometheus."""

    #: of the alert, and of its section in docs/alerts.md
    name: str
    #: PromQL
    expr: str
    #: how long it must hold
    for_: str
    #: critical (no one is served), warning (check today) or info
    severity: str
    #: one sentence, a Prometheus template
    summary: str

    def rule(self, runbooks: str) -> dict[str, Any]:
        """Return the alert as a rule of a rules file.

        Args:
            runbooks: address of the page with its section.
        """
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": f"{runbooks}#{self.name.lower()}"},
        }


def _m(text: str) -> str:
    """Return a query with our prefix in place of `%`."""
    return text.replace("%", PREFIX)


_HOST = "{{ $labels.instance }}"
#: label of the server on a host with several
_SERVER = _HOST + "{{ with $labels.server }} ({{ . }}){{ end }}"

ALERTS: tuple[Alert, ...] = (
    Alert(
        "SparkwrightServerDown",
        _m('%health_state{state=~"down|wedged|stalled|crash-looping"} == 1'),
        "1m",
        "critical",
        f"The server on {_SERVER} is {{{{ $labels.state }}}}.",
    ),
    Alert(
        "SparkwrightCheckMissing",
        _m(f"time() - %health_check_timestamp_seconds > {CHECK_LATE_S}"),
        "1m",
        "critical",
        f"The server on {_SERVER} was last checked {{{{ $value | humanizeDuration }}}} ago.",
    ),
    Alert(
        "SparkwrightHostMissing",
        _m(
            f'(max by (instance) (up{{job="{NODE_JOB}"}}) or max by (instance) (%health_check_timestamp_seconds offset 1h))'
            " unless max by (instance) (%health_check_timestamp_seconds)"
        ),
        "5m",
        "critical",
        f"{_HOST} has no metrics of sparkwright.",
    ),
    Alert(
        "SparkwrightServerDegraded",
        _m('%health_state{state="degraded"} == 1'),
        "15m",
        "warning",
        f"The server on {_SERVER} is degraded.",
    ),
    Alert(
        "SparkwrightFlapping",
        _m("%health_flapping == 1"),
        "10m",
        "warning",
        f"The server on {_SERVER} comes and goes.",
    ),
    Alert(
        "SparkwrightHealed",
        _m("%heal_restarts_last_day >= 3"),
        "0m",
        "warning",
        f"The health check has restarted the server on {_HOST} {{{{ $value }}}} times in a day.",
    ),
    Alert(
        "SparkwrightSlow",
        _m(f"%decode_tokens_per_second < {SLOW} * %decode_baseline_tokens_per_second"),
        "0m",
        "warning",
        f"The server on {_SERVER} generates {{{{ $value | humanize }}}} tok/s to one stream, which is below its baseline.",
    ),
    Alert(
        "SparkwrightQueue",
        _m("%server_waiting_requests > 0"),
        "30m",
        "info",
        f"{{{{ $value }}}} requests wait at {_SERVER}.",
    ),
    Alert(
        "SparkwrightMemoryLow",
        _m(
            f"%memory_available_bytes < {_LIMITS.available_bytes}"
            " unless %memory_available_bytes >= 0.5 * %memory_verified_bytes"
        ),
        "5m",
        "warning",
        f"{_HOST} has {{{{ $value | humanize1024 }}}}B of memory left.",
    ),
    Alert(
        "SparkwrightMemoryGrowing",
        _m("%memory_growing == 1"),
        "0m",
        "warning",
        f"The server on {_SERVER} has grown; as much growth again would take the host down.",
    ),
    Alert(
        "SparkwrightDiskLow",
        _m(f"%disk_free_bytes < {_LIMITS.disk_free_bytes}"),
        "5m",
        "warning",
        f"{_HOST} has {{{{ $value | humanize1024 }}}}B of disk left.",
    ),
    Alert(
        "SparkwrightHot",
        _m(f"%gpu_temperature_celsius > {_LIMITS.temperature_c:g}"),
        "10m",
        "warning",
        f"The GPU of {_HOST} is at {{{{ $value }}}} °C.",
    ),
    Alert(
        "SparkwrightDrift",
        _m("%drift_fields > 0"),
        "1h",
        "info",
        f"What runs on {_SERVER} differs from what was verified.",
    ),
    Alert(
        "SparkwrightGatewayDown",
        f'up{{job="{GATEWAY_JOB}"}} == 0',
        "2m",
        "critical",
        f"The gateway {_HOST} does not answer.",
    ),
    Alert(
        "SparkwrightGatewayModelDown",
        f'haproxy_backend_active_servers{{job="{GATEWAY_JOB}",proxy!~"-.*"}} == 0',  # one with a dash holds a table
        "2m",
        "critical",
        f"The gateway on {_HOST} has no server for {{{{ $labels.proxy }}}}.",
    ),
)


def text(runbooks: str = "") -> str:
    """Return the rules file.

    Args:
        runbooks: address of docs/alerts.md for its links; empty for this project's.
    """
    groups = [{"name": "sparkwright", "rules": [alert.rule(runbooks or RUNBOOKS) for alert in ALERTS]}]
    return HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=130)
