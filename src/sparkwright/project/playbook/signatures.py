"""The arguments of every module, without importing one: a fifth of the planning was the import of code that only hosts run."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

from sparkwright import host_side
from sparkwright.host.state import write_atomically
from sparkwright.modules import registry
from sparkwright.protocol import signature
from sparkwright.protocol.signature import Signature


def takes(module: str) -> Signature:
    """Return the signature of a module of `registry.NAMES`."""
    return signature.from_json(_kept()[module])


@functools.lru_cache(maxsize=1)
def _kept() -> dict[str, Any]:
    """Return the signatures of all modules: from the laptop's cache, or from the modules if the code has changed since."""
    path = host_side.cache() / "signatures.json"
    try:
        kept = json.loads(path.read_bytes())
        if kept["of"] == host_side.content_hash():
            found: dict[str, Any] = kept["modules"]
            return found
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = {name: signature.to_json(signature.of(registry.load(name).Args)) for name in registry.NAMES}
    with contextlib.suppress(OSError):  # a full disk or a home that can't be written costs time, nothing else
        write_atomically(path, json.dumps({"of": host_side.content_hash(), "modules": found}).encode())
    return found
