"""One rank of a group. Ranks meet over TCP as with torch.distributed's store, and write the log lines of real ones.

As observed with a real group of two of vLLM 0.32.0, a lost member is noticed by the next request and not before, and a worker
never ends because the head is gone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from sparkwright.ready import readable
from sparkwright.sandbox.vllm.command_line.arguments import Arguments, Refused, crashed

POLL_S = 0.05
DEFAULT_PORT, DEFAULT_TIMEOUT_S = 29501, 600
WORD_BYTES = 64


@dataclass
class Group:
    """The ranks that serve a model together."""

    rank: int
    world: int
    #: number of ranks that split each layer
    tensor: int
    address: str
    port: int
    timeout_s: float
    #: connections to the other members, once they have joined
    links: list[socket.socket] = field(default_factory=list)

    @classmethod
    def of(cls, arguments: Arguments) -> Group:
        """Return the group of the arguments; a single server is a group of one rank."""
        world = arguments.number("nnodes", 1)
        timeout_s = arguments.number("distributed_timeout_seconds", DEFAULT_TIMEOUT_S)
        address, port = arguments.text("master_addr", "127.0.0.1"), arguments.number("master_port", DEFAULT_PORT)
        tensor = arguments.number("tensor_parallel_size", 1)
        return cls(arguments.number("node_rank", 0), world, tensor, address, port, timeout_s)

    @property
    def broken(self) -> bool:
        """True if another member is gone, as the next collective operation would find."""
        return any(link.recv(1, socket.MSG_PEEK) == b"" for link in readable(self.links))

    def intent(self, version: str) -> Iterator[str]:
        """Yield the log lines of a rank that is about to join. They do not prove that it did."""
        if self.rank:
            yield (
                f"[serve.py:224] Launching vLLM (v{version}) headless multiproc executor, with head node address "
                f"{self.address}:{self.port} for torch.distributed process group."
            )
        at = f"tcp://{self.address}:{self.port}"
        yield f"[parallel_state.py:1906] world_size={self.world} rank={self.rank} local_rank=0 distributed_init_method={at} backend=nccl"

    def assigned(self) -> str:
        """Return the log line that proves the group."""
        tensor, pipeline = self.rank % self.tensor, self.rank // self.tensor
        return (
            f"[parallel_state.py:2350] rank {self.rank} in world size {self.world} is assigned as DP rank 0, PP rank {pipeline}, "
            f"PCP rank 0, TP rank {tensor}, ETP rank {tensor}, EP rank N/A, EPLB rank N/A"
        )

    def meet(self, stopped: threading.Event) -> None:
        """Wait until all members have joined, or until stopped. Raises Refused with the log lines of real ones."""
        until_s = time.monotonic() + self.timeout_s
        if self.world == 1:
            return
        self._gather(stopped, until_s) if self.rank == 0 else self._come(stopped, until_s)

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        links, self.links = self.links, []
        for link in links:
            link.close()

    def _gather(self, stopped: threading.Event, until_s: float) -> None:
        try:
            here = self.address if self.address.startswith("127.") else ""  # otherwise on all interfaces, as in vLLM
            listener = socket.create_server((here, self.port), backlog=self.world)
        except OSError as error:
            raise crashed(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
                f"port: {self.port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ) from error
        with listener:
            listener.settimeout(POLL_S)
            while len(self.links) < self.world - 1 and not stopped.is_set():
                if time.monotonic() > until_s:
                    raise self._late(f"waiting for clients. {len(self.links) + 1}/{self.world} clients joined.")
                with contextlib.suppress(TimeoutError):
                    self.links.append(listener.accept()[0])
        for link in self.links:
            link.sendall(b"all joined\n")

    def _come(self, stopped: threading.Event, until_s: float) -> None:
        link = self._connected(stopped, until_s)
        if link is None:
            return
        self.links.append(link)
        link.settimeout(POLL_S)
        while not stopped.is_set():  # forever if another program has the port, as observed with the real one
            with contextlib.suppress(TimeoutError):
                if link.recv(WORD_BYTES):
                    return
                raise crashed("torch.distributed.DistNetworkError: failed to recv, got 0 bytes")

    def _connected(self, stopped: threading.Event, until_s: float) -> socket.socket | None:
        while not stopped.wait(POLL_S):
            try:
                return socket.create_connection((self.address, self.port), timeout=1)
            except OSError:
                if time.monotonic() > until_s:
                    at = f"({self.address}, {self.port})"
                    message = f"has timed out after {self.timeout_s * 1000:.0f}ms while trying to connect to {at}."
                    raise crashed(f"torch.distributed.DistNetworkError: The client socket {message}") from None
        return None

    def _late(self, message: str) -> Refused:
        return crashed(
            f"torch.distributed.DistStoreError: Timed out after {self.timeout_s + 1:.0f} seconds {message}\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
        )
