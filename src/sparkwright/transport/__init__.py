"""Exchange data with other programs over sockets, within limits of time and bytes, and with a small family of errors.

`http` sends a request and returns the response; `connection` is the underlying byte stream, which other protocols use as well.
Both the laptop and the hosts use this package. It needs only the standard library, and imports ssl only for TLS.
"""
