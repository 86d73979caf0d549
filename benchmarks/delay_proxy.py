"""A TCP proxy on loopback that adds a delay, and counts connections and round trips."""

import asyncio
import socket
import threading
from dataclasses import dataclass


@dataclass
class Counts:
    """The traffic of a proxy. turns: number of times that the direction changed to upstream, that is, round trips."""

    connections: int = 0
    turns: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class DelayProxy:
    """A proxy for one port.

    Args:
        target: port on 127.0.0.1 to which it forwards.
        rtt_s: delay that it adds to each round trip.

    Attributes:
        port: port on which it listens.
    """

    def __init__(self, target: int, rtt_s: float) -> None:
        self.counts = Counts()
        self._target = target
        self._one_way_s = rtt_s / 2
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port = int(server.sockets[0].getsockname()[1])

    async def _serve(self, up: asyncio.StreamReader, down: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        for stream in (down, writer):
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        last = [""]
        pumps = self._pump(up, writer, "up", last), self._pump(reader, down, "down", last)
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str, last: list[str]
    ) -> None:
        """Forward bytes with the delay. last: direction of the most recent bytes, in a list that both pumps share."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._deliver(queue, sink))
        while data := await _read(source):
            if last[0] != direction:
                self.counts.turns += direction == "up"
                last[0] = direction
            name = f"bytes_{direction}"
            setattr(self.counts, name, getattr(self.counts, name) + len(data))
            queue.put_nowait((self._loop.time() + self._one_way_s, data))
        queue.put_nowait((self._loop.time() + self._one_way_s, b""))
        await sender

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            if not data or sink.is_closing():
                sink.close()
                return
            sink.write(data)


async def _read(source: asyncio.StreamReader) -> bytes:
    """Return the received bytes, or b"" if the other side has closed or lost the connection."""
    try:
        return await source.read(65536)
    except ConnectionError:
        return b""
