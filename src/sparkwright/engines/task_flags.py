"""Flags that decide if a server generates text, embeds or reranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.http import Task


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """Flags of one engine that decide about tasks, by task."""

    #: flags and values without which the engine does not serve the task
    needs: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    #: values of flags with which the engine does not serve the task
    excludes: Mapping[Task, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
