"""Redaction of a run's secrets in written and sent data, as plain values and as programs encode them.

This is for secrets whose values are known; secret_patterns.py finds others by their names and formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote as percent
from urllib.parse import quote_plus, unquote

MASK = "••••"
#: minimum length of a secret; shorter ones would occur in ordinary words, so the laptop refuses them
MIN_SECRET_CHARS = 8
#: fields that identify an event and its task
UNREDACTED_FIELDS = frozenset(
    {"event", "time", "task", "module", "status", "exit", "host", "run", "register", "schema"}
)


class Redactor:
    """Replaces secrets with dots.

    Args:
        secrets: values to hide; empty ones are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in _encoded_forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)  # longer forms before their parts
        self._in_json = [json.dumps(form, ensure_ascii=False)[1:-1].encode(errors="replace") for form in self._forms]

    def redact_text(self, text: str) -> str:
        """Return a text in which secrets are replaced with dots."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def has_secret(self, line: bytes) -> bool:
        """Return True if JSON without escaped letters contains a secret."""
        return any(form in line for form in self._in_json)

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value in which all texts, including field names, are redacted."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {self.redact_text(str(key)): self.redact_value(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_value(child) for child in value]
        if value is None or isinstance(value, bool | int | float):
            return MASK if self._forms and str(value) in self._forms else value
        return self.redact_text(str(value))

    def redact_event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return a redacted event, in which the fields that identify it are unchanged."""
        return {key: value if key in UNREDACTED_FIELDS else self.redact_value(value) for key, value in event.items()}


def _encoded_forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as written in JSON, Python, shells, URLs and base64.

    The lines of a multi-line secret and the password of a URL are included as separate secrets.
    """
    from shlex import quote

    from sparkwright.trust.secret_names import url_password

    parts = [*map(str.strip, secret.splitlines()), url_password(secret), unquote(url_password(secret))]
    for item in {secret, secret.strip(), *(part for part in parts if len(part) >= MIN_SECRET_CHARS)} - {""}:
        escaped = json.dumps(item)[1:-1]
        yield from (item, escaped, json.dumps(escaped)[1:-1], json.dumps(item, ensure_ascii=False)[1:-1])
        yield from (repr(item)[1:-1], repr(item.encode(errors="replace"))[2:-1], quote(item).strip("'"))
        yield from (percent(item, safe="", errors="replace"), quote_plus(item, errors="replace"))
        if len(item) >= MIN_SECRET_CHARS:
            yield from _base64_forms(item.encode(errors="replace"))


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield the part of a secret that any base64 text with it contains, for each offset in a group of three bytes.

    An example is `user:password`.
    """
    from base64 import b64encode

    for before in range(3):
        text = b64encode(bytes(before) + secret).decode()
        certain = text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
        yield from (certain, certain.replace("+", "-").replace("/", "_"))
