"""A connection on which a way that is dead is told from a peer that takes its time.

An unplugged cable sends no end: the side that only reads would wait as long as it would for a slow peer. The kernel asks
instead whether the other side is there (TCP keepalive), and the read fails when nobody answers.
"""

from __future__ import annotations

import socket
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

#: the first question after so long without a byte, then one each so often; dead after so many without an answer
IDLE_S, EVERY_S, QUESTIONS = 10, 5, 4


class Adapter(HTTPAdapter):
    """For a session of requests."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """As requests does, with keepalive on each connection."""
        asked = (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, EVERY_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, QUESTIONS),
        )
        super().init_poolmanager(*args, **options, socket_options=[*HTTPConnection.default_socket_options, *asked])
