"""Redacts secrets whose values are known, in plain and encoded forms. secret_patterns.py masks unknown ones by their format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote as percent
from urllib.parse import quote_plus, unquote

MASK = "••••"
#: minimum length of a secret; the laptop refuses shorter ones, which could occur in ordinary words
MIN_SECRET_CHARS = 8
#: fields of an event that are not redacted, because they identify it and its task
UNREDACTED_FIELDS = frozenset(
    {"event", "time", "task", "module", "status", "exit", "host", "run", "register", "schema"}
)


class Redactor:
    """Replaces secrets with dots. Empty secrets are ignored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in _encoded_forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)  # longer forms before their parts
        self._json_forms = [json.dumps(form, ensure_ascii=False)[1:-1].encode(errors="replace") for form in self._forms]

    def redact_text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def has_secret(self, line: bytes) -> bool:
        """Return True if a line of JSON, written with ensure_ascii=False, contains a secret."""
        return any(form in line for form in self._json_forms)

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value in which all strings, including field names, are redacted."""
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
        """Return an event with all but UNREDACTED_FIELDS redacted."""
        return {key: value if key in UNREDACTED_FIELDS else self.redact_value(value) for key, value in event.items()}


def _encoded_forms(secret: str) -> Iterator[str]:
    """Yield a secret, its lines and the password of its URL, each in plain form and as encoded in JSON, Python, shells, URLs
    and base64."""
    from shlex import quote

    from sparkwright.trust.secret_names import url_password

    parts = [*map(str.strip, secret.splitlines()), url_password(secret), unquote(url_password(secret))]
    for plain in {secret, secret.strip(), *(part for part in parts if len(part) >= MIN_SECRET_CHARS)} - {""}:
        escaped = json.dumps(plain)[1:-1]
        yield from (plain, escaped, json.dumps(escaped)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1])
        yield from (repr(plain)[1:-1], repr(plain.encode(errors="replace"))[2:-1], quote(plain).strip("'"))
        yield from (percent(plain, safe="", errors="replace"), quote_plus(plain, errors="replace"))
        if len(plain) >= MIN_SECRET_CHARS:
            yield from _base64_forms(plain.encode(errors="replace"))


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield the part of a base64 text that depends only on the secret, even if the text encodes more, as in `user:password`.

    They depend on the secret's offset in a group of three bytes, so there are three forms, each in both alphabets.
    """
    from base64 import b64encode

    for offset in range(3):
        text = b64encode(bytes(offset) + secret).decode()
        invariant_part = text[-(-offset * 8 // 6) : (offset + len(secret)) * 8 // 6]
        yield from (invariant_part, invariant_part.replace("+", "-").replace("/", "_"))
