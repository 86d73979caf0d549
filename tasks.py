"""`invoke deploy --host spark1`: every command of sparkwright, as an Invoke task."""

from sparkwright.cli import namespace

__all__ = ["namespace"]
