"""Redaction of a run's secrets in what is written down or sent: as plain values, and as programs encode them.

For secrets whose values are known; secret_patterns.py finds others by name and form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote as percent
from urllib.parse import quote_plus, unquote

DOTS = "••••"
#: a shorter one would occur in words that are no secret, so the laptop refuses it
SHORTEST = 8
#: the fields that identify an event and its task
STRUCTURE = frozenset({"event", "time", "task", "module", "status", "exit", "host", "run", "register", "schema"})


class Redactor:
    """Replaces secrets by dots.

    secrets: the values to hide; empty ones are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {form for secret in secrets if secret for form in _forms(secret)}
        self._forms = sorted(found, key=len, reverse=True)  # a longer form before its own parts
        self._in_json = [json.dumps(form, ensure_ascii=False)[1:-1].encode(errors="replace") for form in self._forms]

    def text(self, text: str) -> str:
        """Return a text with each secret in it as dots."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, DOTS)
        return text

    def hides(self, line: bytes) -> bool:
        """Return True if a secret is in this JSON, whose letters are not escaped."""
        return any(form in line for form in self._in_json)

    def value(self, value: Any) -> Any:
        """Return a JSON value with every text in it redacted, names of fields too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(child) for child in value]
        if value is None or isinstance(value, bool | int | float):
            return DOTS if self._forms and str(value) in self._forms else value
        return self.text(str(value))

    def event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return an event, redacted; the fields that identify it are unchanged."""
        return {key: value if key in STRUCTURE else self.value(value) for key, value in event.items()}


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as JSON, Python, a shell, a URL and base64 write it.

    Of several lines each counts by itself too, of a URL its password.
    """
    from shlex import quote

    from sparkwright.trust.secret_names import password_of

    parts = [*map(str.strip, secret.splitlines()), password_of(secret), unquote(password_of(secret))]
    for item in {secret, secret.strip(), *(part for part in parts if len(part) >= SHORTEST)} - {""}:
        escaped = json.dumps(item)[1:-1]
        yield from (item, escaped, json.dumps(escaped)[1:-1], json.dumps(item, ensure_ascii=False)[1:-1])
        yield from (repr(item)[1:-1], repr(item.encode(errors="replace"))[2:-1], quote(item).strip("'"))
        yield from (percent(item, safe="", errors="replace"), quote_plus(item, errors="replace"))
        if len(item) >= SHORTEST:
            yield from _in_base64(item.encode(errors="replace"))


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the part of a secret that is in any base64 text with it, at each offset in a group of three bytes
    (`user:password`)."""
    from base64 import b64encode

    for before in range(3):
        text = b64encode(bytes(before) + secret).decode()
        certain = text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
        yield from (certain, certain.replace("+", "-").replace("/", "_"))
