"""Connections to hosts: one link per host, one exec per request."""

from sparkwright.remote.link import Link, Need, open_link

__all__ = ["Link", "Need", "open_link"]
