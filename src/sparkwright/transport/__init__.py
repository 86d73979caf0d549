"""Exchanges with other programs over sockets: within S seconds, at most B bytes, and a small family of errors.

`http` sends one request and returns its response; `connection` is the byte stream below it, and for protocols other than HTTP.
Both sides of the package use it; it needs only the standard library, and imports ssl only for TLS.
"""
