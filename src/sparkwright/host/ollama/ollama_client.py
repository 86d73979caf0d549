"""Ollama's API, as far as unloading needs it.

Source: ollama's server code around v0.32.15: /api/ps and the unload call can block while a model loads, the unload only
queues an expiry, and a busy model stays listed until its request ends.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any


class Absent(Exception):
    """Nobody answers: no Ollama there, which is fine."""


class Busy(Exception):
    """It is there, and does not answer in time."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory. size_bytes: what it holds. context_length: tokens, 0 when not said. pinned: it never expires."""

    name: str
    size_bytes: int
    context_length: int = 0
    pinned: bool = False

    @classmethod
    def of(cls, row: dict[str, Any]) -> Loaded:
        """A row of /api/ps. A negative keep_alive shows as an expiry some centuries away."""
        year = str(row.get("expires_at", ""))[:4]
        pinned = year.isdigit() and int(year) > time.gmtime().tm_year + 10
        return cls(row["name"], int(row.get("size", 0)), int(row.get("context_length") or 0), pinned)


@dataclass(frozen=True, slots=True)
class Ollama:
    """url: as http://127.0.0.1:11434. timeout_s: of each call."""

    url: str
    timeout_s: float = 5

    def version(self) -> str:
        """Ollama's version. Raises Absent or Busy."""
        return str(self._ask("/api/version").get("version", ""))

    def loaded(self) -> list[Loaded]:
        """The models in memory now. Raises Absent or Busy."""
        rows = self._ask("/api/ps").get("models") or []
        return [Loaded.of(row) for row in rows]

    def unload(self, name: str) -> None:
        """Ask for a model to go; it goes later. Raises Absent or Busy."""
        self._ask("/api/generate", {"model": name, "keep_alive": 0})

    def load(self, model: Loaded) -> bool:
        """Bring a model into memory as it was before; answers when it is there. False: it is not installed any more.

        Raises Absent or Busy.
        """
        options = {"options": {"num_ctx": model.context_length}} if model.context_length else {}
        keep = {"keep_alive": -1} if model.pinned else {}
        return bool(self._ask("/api/generate", {"model": model.name, "stream": False, **options, **keep}))

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                found = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise Busy(f"HTTP {error.code}") from None
        except TimeoutError:
            raise Busy("no answer in time") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise Busy("no answer in time") from None
            raise Absent(str(error)) from None
        return found if isinstance(found, dict) else {}
