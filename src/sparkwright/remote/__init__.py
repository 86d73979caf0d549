"""Connections to hosts: one link each, one request an exec."""

from sparkwright.remote.link import Link, Need, open_link

__all__ = ["Link", "Need", "open_link"]
