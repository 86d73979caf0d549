"""Flags with which SGLang embeds and reranks: `is-embedding`. Source: 0.5.23's server_args.py; read, not run."""

from __future__ import annotations

from sparkwright.engines.task_flags import TaskFlags

TASK_FLAGS = TaskFlags(
    needs={"embed": {"is-embedding": True}, "rerank": {"is-embedding": True}},
    excludes={"generate": {"is-embedding": (True,)}},
)
