"""Connections to hosts: one link per host, one exec per request."""

from sparkwright.remote.link import Link, RequestKind, open_link

__all__ = ["Link", "RequestKind", "open_link"]
