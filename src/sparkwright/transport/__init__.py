"""The room of exchanges with other programs over sockets: within S seconds, at most B bytes, and a small family of errors.

`http` sends one request and returns its response; `connection` is the stream of bytes below it, and what has no HTTP. Both sides
of the package use it; it needs nothing but the standard library, and imports ssl where TLS is asked for and nowhere else.
"""
