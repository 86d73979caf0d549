"""Exchanges with other programs over sockets, limited in time and bytes, with a small family of errors.

`http` sends a request and returns the response; `connection` is the underlying byte stream, also for protocols other than HTTP.
Both the laptop's and the host's side use it. It needs only the standard library, and imports ssl only for TLS.
"""
