"""The version of sparkwright, for packages that can't import sparkwright.api."""

from __future__ import annotations

__version__ = "0.2.0"
