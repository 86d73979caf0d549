"""Flags that decide whether a server generates text, makes vectors or reranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.http import Task


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """Of one engine, by task. needs: flags it does not serve that task without, with their values. excludes: values of flags with
    which it does not serve it."""

    needs: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    excludes: Mapping[Task, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
