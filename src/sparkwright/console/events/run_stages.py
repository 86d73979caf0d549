"""The duration of each stage of a replacement or a restart, for the recap, from the events of its tasks."""

from __future__ import annotations

from sparkwright import units
from sparkwright.protocol.events import Event

#: stages in order, with the modules whose time they include
STAGES: dict[str, tuple[str, ...]] = {
    "prepare": ("preflight", "assert_memory_fits", "docker_image", "hf_model", "second_models", "lint"),
    "interim": ("interim_serves", "interim_stopped"),
    "ollama": ("ollama_unload", "ollama_stop"),
    "drain": ("drain",),
    "stop": ("stop_and_keep", "stopped"),
    "memory": ("wait_exited", "wait_memory_released", "page_cache", "memory"),
    "load": ("container", "wait_ready"),
    "verify": (
        "verify_health",
        "gpu_used",
        "verify_logs",
        "smoke_test",
        "reference_text",
        "prefix_cache",
        "probes",
        "load_proof",
        "depth_rates",
    ),
    "cold start": ("move_cache_aside",),
}
STAGE_OF = {module: stage for stage, modules in STAGES.items() for module in modules}
#: a run without this module replaced and restarted nothing
LOADS = "wait_ready"
LEAST_S = 0.05
#: the server that was started and verified before this module is an interim server
TAKES_OVER = "interim_serves"


class RunStages:
    """The stages of one host's run."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._loaded = False

    def add(self, event: Event) -> None:
        """Add the duration of a finished task."""
        if event["status"] == "skipped" or (stage := STAGE_OF.get(event["module"])) is None:
            return
        self._loaded = self._loaded or event["module"] == LOADS
        earlier = ("load", "verify", stage) if event["module"] == TAKES_OVER else (stage,)
        self._seconds[stage] = sum(self._seconds.pop(item, 0.0) for item in earlier) + event["seconds"]

    @property
    def sentence(self) -> str:
        """The stages as text: "stop 2s, memory 4s, load 95s, verify 14s"; empty for a run that loaded nothing."""
        found = ((stage, self._seconds.get(stage, 0.0)) for stage in STAGES) if self._loaded else ()
        return ", ".join(f"{stage} {units.duration(seconds)}" for stage, seconds in found if seconds >= LEAST_S)
