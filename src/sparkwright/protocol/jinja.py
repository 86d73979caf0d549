"""Jinja2's environment of a playbook: the sandbox, with this tool's filters and tests."""

from __future__ import annotations

import posixpath
from typing import Any

from jinja2 import StrictUndefined

from sparkwright import shell
from sparkwright.protocol.jinja_limits import Limited
from sparkwright.units import gib
from sparkwright.visible import one_line


def truth(value: Any) -> bool:
    """Return a value as a condition: the strings that YAML and Ansible accept for true are true, other strings are not."""
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def environment() -> Limited:
    env = Limited(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters.update(
        quote=shell.quote,
        one_line=one_line,  # for a comment: a recipe's text must not end it
        bool=truth,
        basename=posixpath.basename,
        dirname=posixpath.dirname,
        GiB=lambda size_bytes: f"{gib(size_bytes)} GiB",
    )
    env.tests.update(
        changed=lambda result: bool(result["changed"]),
        failed=lambda result: bool(result["failed"]),
        succeeded=lambda result: not result["failed"],
        skipped=lambda result: bool(result["skipped"]),
    )
    return env
