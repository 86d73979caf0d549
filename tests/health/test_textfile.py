"""The metrics file, checked by Prometheus's promtool."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sparkwright.health import textfile
from sparkwright.health.record import STATES, Container, Gpu, Machine, Record, Server, Serves, Speed

TOP = Path(__file__).parent.parent.parent
FULL = Record(
    time_s=1.8e9,
    state="degraded",
    seen="degraded",
    since_s=1.7e9,
    container=Container('a"b\\c\nd', "1", "running", 2, "no", None, 1.7e9),
    server=Server("http://127.0.0.1:8000", 200, "made", 0.06, 1.0, 2.0, 100.0, 12.5, 0.25),
    speed=Speed(47.0, 48.0, 0.1, "proved", 1.7e9),
    machine=Machine(120, 11, 16, 1, 500, 9e5),
    gpu=Gpu(47, 38.2, 2411, 3),
    serves=Serves("image", "0.32.0", "a/b", "1" * 40, "q", 1.7e9),
)
UNKNOWN = Record(time_s=1.8e9, state="unknown", seen="unknown", since_s=1.7e9)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is in Debian's package prometheus")
@pytest.mark.parametrize("record", [FULL, UNKNOWN], ids=["full", "unknown"])
def test_promtool_accepts_the_metrics(record: Record) -> None:
    command = ["promtool", "check", "metrics"]
    result = subprocess.run(command, input=textfile.render_metrics(record), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_unknown_values_have_no_sample() -> None:
    text = textfile.render_metrics(UNKNOWN)
    assert "gpu_temperature" not in text and "None" not in text
    assert "sparkwright_gpu_sm_clock_hertz 2411000000.0\n" in textfile.render_metrics(FULL)


def test_only_the_current_state_is_1() -> None:
    rows = re.findall(r'health_state\{state="([a-z-]+)"\} ([01])\.0', textfile.render_metrics(FULL))
    assert dict(rows) == {state: str(int(state == "degraded")) for state in STATES}


def test_every_metric_is_documented() -> None:
    page = (TOP / "docs/metrics.md").read_text()
    metrics = (*textfile.METRICS, textfile.STATE_METRIC, textfile.INFO_METRIC, textfile.HEALS_METRIC)
    assert [metric.name for metric in metrics if f"`{textfile.PREFIX}{metric.name}`" not in page] == []
