"""The version of sparkwright, imported by what stands below the API."""

from __future__ import annotations

__version__ = "0.2.0"
