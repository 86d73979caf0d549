"""The scrape configuration for Prometheus: each gateway, and node_exporter on each host.

Prometheus reads the file through `scrape_config_files`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.gateway import usage
from sparkwright.monitoring.alerts import CLIENTS_JOB, GATEWAY_JOB, NODE_JOB

#: node_exporter's default port (from its README)
NODE_PORT = 9100
KEY_PATH_FORMAT = "/etc/prometheus/{name}.gateway-key"

HEADER_FORMAT = """\
# Written by `sparkwright monitoring.install`. Prometheus 2.43 and newer: `scrape_config_files: [{file}]`; older: paste it into
# prometheus.yml. `instance` is the host's name in the inventory.
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A scrape target."""

    #: value of the `instance` label
    name: str
    address: str
    port: int
    tls: bool = False
    #: True if an API key is required
    needs_key: bool = False
    #: True if clients have their own keys
    has_clients: bool = False

    def address_and_port(self) -> str:
        """Return the address in Prometheus's format, with IPv6 addresses in brackets."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def render_config(file: str, hosts: list[Endpoint], gateways: list[Endpoint]) -> str:
    """Return the scrape configuration.

    Args:
        file: name of the file, for its header.
        hosts: endpoints of node_exporter.
    """
    jobs = [_job(NODE_JOB, [_static_config(host) for host in hosts]), *(_gateway_job(gateway) for gateway in gateways)]
    gateways_with_clients = (gateway for gateway in gateways if gateway.has_clients)
    jobs += [
        {**_gateway_job(gateway, CLIENTS_JOB), "metrics_path": usage.METRICS_PATH} for gateway in gateways_with_clients
    ]
    return HEADER_FORMAT.format(file=file) + yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False, width=130)


def _job(name: str, static_configs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"job_name": name, "static_configs": static_configs}


def _static_config(endpoint: Endpoint) -> dict[str, Any]:
    return {"targets": [endpoint.address_and_port()], "labels": {"instance": endpoint.name}}


def _gateway_job(endpoint: Endpoint, name: str = GATEWAY_JOB) -> dict[str, Any]:
    """Return the job for a gateway.

    Each gateway has its own job, because keys may differ. Alerts and panels use the label `job`, which is the same for all.
    """
    static_config = _static_config(endpoint)
    static_config["labels"]["job"] = name
    job = _job(f"{name}-{endpoint.name}", [static_config])
    job |= {"scheme": "https"} if endpoint.tls else {}
    return job | (
        {"authorization": {"credentials_file": KEY_PATH_FORMAT.format(name=endpoint.name)}}
        if endpoint.needs_key
        else {}
    )
