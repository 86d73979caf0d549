"""Rules and dashboard in a real Prometheus, with the metrics of health checks."""

import time
from pathlib import Path

import pytest

from sparkwright.gateway import usage
from sparkwright.health import textfile
from sparkwright.health.record import Container, Gpu, Machine, Record, Server, Serves, Speed
from sparkwright.monitoring import alerts, dashboard

from .conftest import Prometheus, needs_prometheus

#: some of the metrics of HAProxy's own exporter (2.6)
GATEWAY_METRICS = """\
haproxy_backend_http_requests_total{proxy="small"} 12
haproxy_backend_current_queue{proxy="small"} 0
haproxy_backend_active_servers{proxy="small"} SERVERS
haproxy_backend_http_responses_total{proxy="small",code="5xx"} 0
"""
#: as in a gateway's own `/metrics/clients`
CLIENT_METRICS = "".join(
    f'sparkwright_client_{name}_total{{client="alice"}} 1\n'
    for name in ("queue_seconds", *(field for field in usage.FIELDS if field != "queue_ms"))
)


def render_page(state: str, *, tok_per_s: float, checked_s: float, hot: bool = False) -> str:
    record = Record(
        time_s=checked_s,
        state=state,  # type: ignore[arg-type]
        seen=state,  # type: ignore[arg-type]
        since_s=1.7e9,
        container=Container("small", "1", "running", 0, "no", None, 1.7e9),
        server=Server("http://127.0.0.1:8000", 200, "made", 0.06, 1.0, 2.0, 100.0, 12.5, 0.25),
        speed=Speed(tok_per_s, 48.0, 0.1, "proved", 1.7e9),
        machine=Machine(120 * 2**30, 11 * 2**30, 16, 1, 500 * 2**30, 9e5),
        gpu=Gpu(95 if hot else 47, 38.2, 2411, 3),
        serves=Serves("image", "0.32.0", "a/b", "1" * 40, "q", 1.7e9),
    )
    return textfile.render_metrics(record)


@needs_prometheus
@pytest.mark.slow
def test_every_query_of_the_dashboard_has_a_result(prometheus: Prometheus) -> None:
    prometheus.pages["spark1"] = render_page("ok", tok_per_s=47.0, checked_s=time.time())
    prometheus.pages["lab"] = GATEWAY_METRICS.replace("SERVERS", "1")
    prometheus.pages["clients"] = CLIENT_METRICS
    for name in ("haproxy_backend_active_servers", "sparkwright_client_queue_seconds_total"):
        prometheus.wait_until(lambda name=name: len(prometheus.query(f"count_over_time({name}[1m]) > 1")) > 0)  # type: ignore[misc]
    assert [query for query in dashboard.list_queries() if not prometheus.query(query)] == []


@needs_prometheus
@pytest.mark.slow
def test_alerts_of_a_host_become_active_when_its_state_changes(prometheus: Prometheus) -> None:
    def active_alerts() -> set[str]:
        return {item["metric"]["alertname"] for item in prometheus.query("ALERTS")}

    prometheus.pages["spark1"] = render_page("ok", tok_per_s=47.0, checked_s=time.time())
    prometheus.pages["lab"] = GATEWAY_METRICS.replace("SERVERS", "1")
    prometheus.wait_until(lambda: len(prometheus.query("sparkwright_decode_tokens_per_second")) > 0)
    prometheus.wait_until(lambda: active_alerts() == {"SparkwrightQueue"})
    prometheus.pages["spark1"] = render_page("wedged", tok_per_s=5.0, checked_s=time.time() - 1000, hot=True)
    prometheus.pages["lab"] = GATEWAY_METRICS.replace("SERVERS", "0")
    expected = {"ServerDown", "CheckMissing", "Slow", "Hot", "Queue", "GatewayModelDown"}
    prometheus.wait_until(lambda: active_alerts() == {f"Sparkwright{name}" for name in expected})


def test_every_alert_has_a_section_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text()
    assert [alert.name for alert in alerts.ALERTS if f"\n## {alert.name}\n" not in page] == []
