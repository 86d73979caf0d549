"""Samples of the GPU during decoding: clock, power, temperature and utilization.

A GB10 has slow states that look like the effect of a wrong flag: after a failed USB-PD negotiation it stays at 500 to 850 MHz and
reports no error. The cause of a slow server is then the host, not a flag.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparkwright import defaults
from sparkwright.measure.background import BackgroundSampler

GPU_SAMPLE_INTERVAL_S = 0.5
FIGURE_FORMATS = ("SM clock {:.0f} MHz", "{:.0f} W", "{:.0f} °C", "{:.0f} % busy")

#: minimum clock of a GPU that is busy during a measurement; below it, the host is the cause of a low rate. The health checks'
#: `low_mhz` (health.judging.observation.Limits) has another purpose: a clock below it, together with low power draw, shows that
#: the power supply negotiated too little
MIN_CLOCK_MHZ = 1500.0
#: the same, as a share of the clock in the baseline
MIN_CLOCK_SHARE = 0.8
#: minimum power of a busy GPU as a share of the power in the baseline; a stalled GPU draws less, while decoding even a single
#: stream draws more, although its power varies
MIN_POWER_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A sample in MHz, W, degrees C and percent. None means unknown."""

    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class GpuState(GpuSample):
    """The medians of several samples."""

    #: number of samples
    samples: int = 0

    @property
    def has_clock(self) -> bool:
        """True if the clock and the utilization were reported."""
        return self.clock_mhz is not None and self.utilization_percent is not None

    def is_degraded(self, baseline_mhz: float | None) -> bool:
        """Return True if the GPU is busy but its clock is far below normal.

        Args:
            baseline_mhz: clock when the baseline was measured.
        """
        if self.clock_mhz is None or not self._is_busy:
            return False
        return self.clock_mhz < MIN_CLOCK_MHZ or (
            baseline_mhz is not None and self.clock_mhz < MIN_CLOCK_SHARE * baseline_mhz
        )

    def describe_stall(self, baseline_w: float | None) -> str:
        """Describe a GPU that is busy but draws far less power than in the baseline; empty otherwise."""
        if not baseline_w or self.power_w is None or not self._is_busy:
            return ""
        if self.power_w >= MIN_POWER_SHARE * baseline_w:
            return ""
        message = f"the GPU is {self.utilization_percent:.0f} % busy at {self.power_w:.0f} W, against {baseline_w:.0f} W before"
        return f"{message}: it waits more than it computes"

    @property
    def _is_busy(self) -> bool:
        return self.utilization_percent is not None and self.utilization_percent > defaults.BUSY_GPU_PERCENT

    @property
    def sentence(self) -> str:
        parts = zip(
            FIGURE_FORMATS, (self.clock_mhz, self.power_w, self.temperature_c, self.utilization_percent), strict=True
        )
        message = ", ".join(template.format(figure) for template, figure in parts if figure is not None)
        return f"{message} (median of {self.samples} while decoding)" if message else "nvidia-smi returned no data"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class GpuSampler(BackgroundSampler):
    """Samples the GPU during a `with` block.

    Args:
        query: returns the fields of a `GpuSample`; empty if there is no GPU.
    """

    def __init__(self, query: Callable[[], Mapping[str, float | None]]) -> None:
        super().__init__()
        self.query = query
        self.samples: list[GpuSample] = []

    def discard_samples(self) -> None:
        """Discard the samples taken before decoding."""
        self.samples.clear()

    @property
    def state(self) -> GpuState:
        return summarize_samples(list(self.samples))

    def sample(self) -> None:
        sample = build_sample(self.query())
        if sample is not None:
            self.samples.append(sample)
        self.pause(GPU_SAMPLE_INTERVAL_S)


def build_sample(figures: Mapping[str, float | None]) -> GpuSample | None:
    """Return a sample with these figures, or None for a host without a GPU."""
    return GpuSample(**{field.name: figures.get(field.name) for field in fields(GpuSample)}) if figures else None


def summarize_samples(samples: Sequence[GpuSample]) -> GpuState:
    def compute_median(name: str) -> float | None:
        values = [getattr(sample, name) for sample in samples if getattr(sample, name) is not None]
        return statistics.median(values) if values else None

    return GpuState(samples=len(samples), **{field.name: compute_median(field.name) for field in fields(GpuSample)})
