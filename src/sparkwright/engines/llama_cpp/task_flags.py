"""Flags with which llama-server embeds and reranks. Sources: b11549, real: without them 501, "Start it with `--embeddings`"; with
a pooling of none 400, "not OAI compatible"."""

from __future__ import annotations

from sparkwright.engines.task_flags import TaskFlags

TASK_FLAGS = TaskFlags(
    needs={"embed": {"embeddings": True}, "rerank": {"reranking": True}},
    excludes={"embed": {"pooling": ("none", "rank")}},
)
