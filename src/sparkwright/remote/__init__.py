"""Reaching a host: one link each, one request an exec."""

from sparkwright.remote.link import Link, open_link

__all__ = ["Link", "open_link"]
