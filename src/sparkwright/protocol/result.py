"""The result of a module, and the declaration of its arguments, as used by the laptop and the host."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from sparkwright.errors import Exit, Failed


def arg(doc: str, *, default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING) -> Any:
    """Return a field of a module's Args. doc: its description for the documentation, including the unit."""
    return field(default=default, default_factory=default_factory, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Change:
    """A field whose value differs from the expected one. None means that the field is absent."""

    field: str
    before: Any
    after: Any
    #: why the difference matters
    why: str = ""


@dataclass(slots=True)
class Result:
    """The result of a module."""

    #: one sentence
    msg: str = ""
    changed: bool = False
    failed: bool = False
    skipped: bool = False
    diff: list[Change] = field(default_factory=list)
    #: values for later tasks, available through `register`; plain JSON
    data: dict[str, Any] = field(default_factory=dict)
    #: how the user can resolve a failure
    fix: str = ""
    #: exit code of a failure; None for 1. Without a failure, INCONCLUSIVE or CHANGES lets the run continue and is its exit code
    exit: Exit | None = None

    @property
    def status(self) -> str:
        """ "failed", "skipped", "changed" or "ok"."""
        return "failed" if self.failed else "skipped" if self.skipped else "changed" if self.changed else "ok"

    def registered(self) -> dict[str, Any]:
        """Return the values that later tasks find in the registered variable."""
        flags = {"changed": self.changed, "failed": self.failed, "skipped": self.skipped, "msg": self.msg}
        failure = {"fix": self.fix, "exit": int(self.exit or Exit.FAILED) if self.failed else 0}
        return {**self.data, **flags, **failure, "diff": [dataclasses.asdict(change) for change in self.diff]}


def check_result(result: object, module: str) -> Result:
    """Return a module's result unchanged. Raises Failed unless it is a Result that can be written as JSON."""
    if not isinstance(result, Result) or not isinstance(result.data, dict):
        raise Failed(f"{module} returned no result.")
    texts = (result.msg, result.fix, *(change.field for change in result.diff if isinstance(change, Change)))
    is_valid = all(isinstance(text, str) for text in texts) and all(
        isinstance(change, Change) for change in result.diff
    )
    try:
        json.dumps([result.data, [[change.before, change.after, change.why] for change in result.diff]], default=str)
    except Exception as error:
        is_valid = False
        print(f"{module}: {type(error).__name__}: {error}", flush=True)
    if not is_valid:
        raise Failed(f"{module} returned a result that can't be written as JSON.")
    return result
