"""Provision and operate model servers on NVIDIA DGX Spark hosts. The laptop plans and monitors; the hosts do the work.

`from sparkwright import Fleet` is the Python API (docs/api.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkwright.version import __version__ as __version__

if TYPE_CHECKING:
    from sparkwright.api import Fleet as Fleet


def __getattr__(name: str) -> Any:
    """Import `Fleet` on first use, because hosts don't have the API and commands don't need it."""
    if name != "Fleet":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module("sparkwright.api").Fleet
