"""The latest record in Prometheus's text format, for node_exporter's textfile collector.

The file is health.prom in the state folder, or sparkwright.prom in the collector's folder if that is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.health.record import STATES, Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.module import Context
from sparkwright.host.state import write_atomically
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.trust import private
from sparkwright.trust.names import expand_home

FILE = "health.prom"
#: name of the file in a shared folder
SHARED_FILE = "sparkwright.prom"
PREFIX = "sparkwright_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge."""

    #: name without the prefix, ending with the unit
    name: str
    description: str
    #: returns the value from a record; None (unknown) omits the metric
    read_value: Callable[[Record], float | None]


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _is_memory_growing(record: Record) -> float | None:
    machine = record.machine
    level = MemoryLevel(
        total_bytes=machine.mem_total_bytes or 0,
        left_bytes=machine.mem_verified_bytes,
        lowest_bytes=machine.mem_lowest_bytes,
    )
    return None if level.left_bytes is None else float(level.is_near_exhaustion)


#: metrics with one sample each, in Prometheus's base units: seconds, bytes, hertz, watts, celsius, ratios
_METRIC_ROWS: tuple[tuple[str, str, Callable[[Record], float | None]], ...] = (
    ("health_check_timestamp_seconds", "Time of the last check.", lambda r: r.time_s),
    ("health_check_duration_seconds", "Duration of the last check.", lambda r: r.cost.wall_s),
    ("health_check_cpu_seconds", "CPU time of the last check.", lambda r: r.cost.cpu_s),
    ("health_state_since_timestamp_seconds", "Time of the last state change.", lambda r: r.since_s),
    ("health_flapping", "1 when the server changed state several times in the last checks.", lambda r: float(r.flapping)),
    ("container_running", "1 when the server's container is running.", lambda r: float(r.container.status == "running")),
    ("container_restarts", "Restarts since the container was last started.", lambda r: r.container.restarts),
    ("container_start_timestamp_seconds", "Start time of the container.", lambda r: r.container.started_s),
    ("drift_fields", "Fields in which the running server differs from the last good state.", lambda r: float(len(r.drift))),
    ("server_token_seconds", "Time that the check's test token took.", lambda r: r.server.token_s),
    ("server_running_requests", "Requests running at the check.", lambda r: r.server.running),
    ("server_waiting_requests", "Requests waiting at the check.", lambda r: r.server.waiting),
    ("server_kv_cache_used_ratio", "Share of the KV cache in use at the check.", lambda r: r.server.kv_cache_used),
    ("server_served_tokens_per_second", "Tokens per second of all streams since the previous check.",
     lambda r: r.server.served_tok_per_s),
    ("decode_tokens_per_second", "Decode rate of one stream, last measurement.", lambda r: r.speed.tok_per_s),
    ("decode_baseline_tokens_per_second", "Decode rate of the baseline.", lambda r: r.speed.baseline_tok_per_s),
    ("decode_measured_timestamp_seconds", "Time of the last decode rate measurement.", lambda r: r.speed.measured_s),
    ("memory_total_bytes", "Total unified memory.", lambda r: r.machine.mem_total_bytes),
    ("memory_available_bytes", "Available unified memory.", lambda r: r.machine.mem_available_bytes),
    ("memory_verified_bytes", "Available unified memory when the server was verified.", lambda r: r.machine.mem_verified_bytes),
    ("memory_lowest_bytes", "Lowest available unified memory since the server was verified.",
     lambda r: r.machine.mem_lowest_bytes),
    ("memory_growing", "1 when growing again by as much as since the verification would take the host down.", _is_memory_growing),
    ("swap_used_bytes", "Swap in use.", lambda r: r.machine.swap_used_bytes),
    ("disk_free_bytes", "Free space on the disk of the user's home.", lambda r: r.machine.disk_free_bytes),
    ("gpu_temperature_celsius", "GPU temperature.", lambda r: r.gpu.temperature_c),
    ("gpu_power_watts", "GPU power draw.", lambda r: r.gpu.power_w),
    ("gpu_sm_clock_hertz", "GPU SM clock.", lambda r: _scale(r.gpu.clock_mhz, 1e6)),
    ("gpu_busy_ratio", "GPU utilization.", lambda r: _scale(r.gpu.utilization_percent, 0.01)),
)  # fmt: skip
METRICS = tuple(Metric(*row) for row in _METRIC_ROWS)

STATE_METRIC = Metric("health_state", "1 for the state the host is in, 0 for the others.", lambda r: None)
INFO_METRIC = Metric("server_info", "Labels of the running server; always 1.", lambda r: 1.0)
HEALS_METRIC = Metric("heal_restarts_last_day", "Restarts by the health check in the last 24 hours.", lambda r: None)


def write(context: Context, record: Record, history: CheckHistory, settings: Settings) -> None:
    """Write the file of the last check. An error is only noted."""
    server = context.state.server
    if settings.textfile:
        path, mode = expand_home(settings.textfile) / shared_file(server), 0o644  # node_exporter runs as another user
    else:
        path, mode = context.state.ensure_records_folder() / FILE, private.FILE_MODE
    try:
        write_atomically(path, render_metrics(record, heal_count=len(history.heals), server=server).encode(), mode=mode)
    except OSError as error:
        context.note(f"cannot write {path}: {error.strerror}")


def shared_file(server: str) -> str:
    """Return the file's name in a shared folder. server: name of the container; empty if the host has only one server."""
    return f"{Path(SHARED_FILE).stem}-{server}.prom" if server else SHARED_FILE


def render_metrics(record: Record, *, heal_count: int = 0, server: str = "") -> str:
    """Return the text of all metrics.

    Args:
        heal_count: number of restarts by the health check in the last 24 hours.
        server: label of each sample, see `shared_file`.
    """
    server_label = {"server": server} if server else {}
    info_labels = {"model": record.serves.model, "commit": record.serves.commit, "image": record.serves.image}
    info_labels["container"] = record.container.name
    blocks = [_format_head(STATE_METRIC)]
    blocks += [
        _format_sample(STATE_METRIC, {**server_label, "state": state}, float(state == record.state)) for state in STATES
    ]
    blocks += [_format_head(INFO_METRIC), _format_sample(INFO_METRIC, {**server_label, **info_labels}, 1.0)]
    blocks += [_format_head(HEALS_METRIC), _format_sample(HEALS_METRIC, server_label, float(heal_count))]
    for metric in METRICS:
        value = metric.read_value(record)
        if value is not None:
            blocks += [_format_head(metric), _format_sample(metric, server_label, value)]
    return "".join(blocks)


def _format_head(metric: Metric) -> str:
    return f"# HELP {PREFIX}{metric.name} {metric.description}\n# TYPE {PREFIX}{metric.name} gauge\n"


def _format_sample(metric: Metric, labels: Mapping[str, str], value: float) -> str:
    label_text = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
    return f"{PREFIX}{metric.name}{f'{{{label_text}}}' if label_text else ''} {float(value)!r}\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
