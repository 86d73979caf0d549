"""Flags that decide vLLM's task: the model does, unless `runner` is set. Sources: 0.32.0 on a CPU, where a pooling server has no
chat (404) and a generating one no embeddings."""

from __future__ import annotations

from sparkwright.engines.task_flags import TaskFlags

TASK_FLAGS = TaskFlags(
    excludes={
        "generate": {"runner": ("pooling", "draft"), "convert": ("embed", "classify")},
        "embed": {"runner": ("generate", "draft"), "convert": ("classify",)},
        "rerank": {"runner": ("generate", "draft")},
    }
)
