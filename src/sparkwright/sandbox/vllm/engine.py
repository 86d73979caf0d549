"""One run of the simulated vLLM, from its arguments to its exit code, as a single server or a rank of a group."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.ready import wait_for_readable
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.memory import TOTAL_BYTES
from sparkwright.sandbox.serving.process import (
    COMPILE_PEAK_BYTES,
    HOST_MEMORY_BYTES,
    SIGTERM_EXIT_CODE,
    Process,
    StartError,
)
from sparkwright.sandbox.vllm import command_line, responses, startup
from sparkwright.sandbox.vllm.command_line import Arguments, crash_error, parse_arguments
from sparkwright.sandbox.vllm.config import (
    Config,
    build_config,
    check_after_weights,
    check_before_weights,
    read_model_config,
)
from sparkwright.sandbox.vllm.metrics import Metrics, PrefixCache
from sparkwright.sandbox.vllm.model import load_adapters, parse_drafts
from sparkwright.units import GIB

POLL_S = 0.05
DEFAULT_MASTER_PORT, DEFAULT_TIMEOUT_S = 29501, 600
MAX_MESSAGE_BYTES = 64
NCCL_PREFIX = "spark:141:141 [0] NCCL INFO"
CACHE_VARIABLE = "VLLM_CACHE_ROOT"
#: path of a compiled graph in the cache folder of vLLM 0.32.0
COMPILED_FILE = "torch_compile_cache/0a1b2c3d4e/rank_0_0/backbone/artifact_compile_range_1_4096"


@dataclass
class Group:
    """The group of ranks that serve a model together, as seen by one rank."""

    rank: int
    world_size: int
    #: number of ranks that split each layer
    tensor_parallel_size: int
    address: str
    port: int
    timeout_s: float
    #: connections to the other members, once they have joined
    links: list[socket.socket] = field(default_factory=list)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Group:
        """Return the group that the arguments describe. A single server is a group of one rank."""
        world_size = arguments.number("nnodes", 1)
        timeout_s = arguments.number("distributed_timeout_seconds", DEFAULT_TIMEOUT_S)
        address, port = arguments.text("master_addr", "127.0.0.1"), arguments.number("master_port", DEFAULT_MASTER_PORT)
        tensor_parallel_size = arguments.number("tensor_parallel_size", 1)
        return cls(arguments.number("node_rank", 0), world_size, tensor_parallel_size, address, port, timeout_s)

    @property
    def is_broken(self) -> bool:
        """True if another member has closed its connection."""
        return any(link.recv(1, socket.MSG_PEEK) == b"" for link in wait_for_readable(self.links))

    def join_lines(self, version: str) -> Iterator[str]:
        """Yield the lines that a rank logs before it joins the group."""
        if self.rank:
            yield (
                f"[serve.py:224] Launching vLLM (v{version}) headless multiproc executor, with head node address "
                f"{self.address}:{self.port} for torch.distributed process group."
            )
        url = f"tcp://{self.address}:{self.port}"
        yield f"[parallel_state.py:1906] world_size={self.world_size} rank={self.rank} local_rank=0 distributed_init_method={url} backend=nccl"

    def assignment_line(self) -> str:
        """Return the log line of a rank that has joined the group."""
        pipeline_rank, tensor_rank = divmod(self.rank, self.tensor_parallel_size)
        return (
            f"[parallel_state.py:2350] rank {self.rank} in world size {self.world_size} is assigned as DP rank 0, PP rank {pipeline_rank}, "
            f"PCP rank 0, TP rank {tensor_rank}, ETP rank {tensor_rank}, EP rank N/A, EPLB rank N/A"
        )

    def wait_for_members(self, stop_event: threading.Event) -> None:
        """Wait until all members have joined or `stop_event` is set. Raises StartError after the timeout."""
        deadline_s = time.monotonic() + self.timeout_s
        if self.world_size == 1:
            return
        self._accept_members(stop_event, deadline_s) if self.rank == 0 else self._connect_to_head(
            stop_event, deadline_s
        )

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        links, self.links = self.links, []
        for link in links:
            link.close()

    def _accept_members(self, stop_event: threading.Event, deadline_s: float) -> None:
        try:
            # as in vLLM, on all interfaces unless the address is a loopback address
            listen_address = self.address if self.address.startswith("127.") else ""
            listener = socket.create_server((listen_address, self.port), backlog=self.world_size)
        except OSError as error:
            raise crash_error(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
                f"port: {self.port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ) from error
        with listener:
            listener.settimeout(POLL_S)
            while len(self.links) < self.world_size - 1 and not stop_event.is_set():
                if time.monotonic() > deadline_s:
                    raise self._timeout_error(
                        f"waiting for clients. {len(self.links) + 1}/{self.world_size} clients joined."
                    )
                with contextlib.suppress(TimeoutError):
                    self.links.append(listener.accept()[0])
        for link in self.links:
            link.sendall(b"all joined\n")

    def _connect_to_head(self, stop_event: threading.Event, deadline_s: float) -> None:
        link = self._dial_head(stop_event, deadline_s)
        if link is None:
            return
        self.links.append(link)
        link.settimeout(POLL_S)
        while not stop_event.is_set():  # vLLM also waits forever if another program listens on the port (observed)
            with contextlib.suppress(TimeoutError):
                if link.recv(MAX_MESSAGE_BYTES):
                    return
                raise crash_error("torch.distributed.DistNetworkError: failed to recv, got 0 bytes")

    def _dial_head(self, stop_event: threading.Event, deadline_s: float) -> socket.socket | None:
        while not stop_event.wait(POLL_S):
            try:
                return socket.create_connection((self.address, self.port), timeout=1)
            except OSError:
                if time.monotonic() > deadline_s:
                    address = f"({self.address}, {self.port})"
                    message = f"has timed out after {self.timeout_s * 1000:.0f}ms while trying to connect to {address}."
                    raise crash_error(f"torch.distributed.DistNetworkError: The client socket {message}") from None
        return None

    def _timeout_error(self, message: str) -> StartError:
        return crash_error(
            f"torch.distributed.DistStoreError: Timed out after {self.timeout_s + 1:.0f} seconds {message}\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
        )


class Engine(Process):
    """A simulated vLLM engine.

    `argv` is the command line after `vllm serve`.
    """

    default_holder = "vllm"

    config: Config
    arguments: Arguments
    model: Mapping[str, Any]
    metrics: Metrics
    group: Group | None = None
    #: the start uses the compile cache of an earlier one
    has_compile_cache = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: stored responses by id
        self.stored_responses: dict[str, dict[str, Any]] = {}

    def bind_error_log(self, error: OSError) -> Sequence[str]:
        return ["Traceback (most recent call last):", f"OSError: [Errno {error.errno}] {error.strerror}"]

    def stop_log(self) -> Sequence[str]:
        return list(startup.stop_lines())

    def exit_log(self) -> Sequence[str]:
        return [*(startup.lost_peer_lines() if self.has_lost_peer else ()), *startup.exit_lines()]

    def crash_log(self) -> Sequence[str]:
        return list(startup.crash_lines())

    @property
    def stores_responses(self) -> bool:
        """True if the storage of responses is enabled."""
        return self.env.get(responses.STORE_VARIABLE) == "1"

    def store_response(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return a response, and store it if that is enabled."""
        if self.stores_responses and len(self.stored_responses) < responses.MAX_STORED_RESPONSES:
            self.stored_responses[response["id"]] = response
        return response

    def kill_rank(self) -> None:
        """Kill this member's rank process. A worker exits with code 0, and a head exits as after a failed request."""
        if self.group is None or self.group.world_size == 1:
            return
        self.write_last_lines(startup.lost_rank_lines(self.group.rank), 0)
        if self.headless:
            self.stop_event.set()
        else:
            self.exit_silently()

    def start_and_serve(self) -> int:
        arguments = parse_arguments(command_line.expand_config_file(self.argv, self._host_path), self.version)
        self.group = Group.from_arguments(arguments)
        self.write_log(() if self.headless else startup.banner_lines(arguments, self.version))
        server = None if self.headless else self.bind(arguments.text("host", "0.0.0.0"), arguments.number("port", 8000))
        folder = self._host_path(arguments.model)
        model = read_model_config(arguments.model, folder)
        self.arguments, self.model = arguments, model
        self.write_log(startup.architecture_lines(str(model["architectures"][0])))
        drafts = parse_drafts(
            arguments.values.get("speculative_config"),
            arguments.model,
            self._host_path,
            is_good=self.fault() != "bad-drafts",
        )
        self.config = self.limits = replace(build_config(arguments, model, folder, self.version), drafts=drafts)
        self.write_log(startup.settings_lines(self.config, arguments, self.version))
        check_before_weights(self.config, self.version)
        self.crash_if_looping()
        if not self.take_memory(int(self.config.utilization * TOTAL_BYTES)):
            free_gib = 41.3 if self.fault() == "oom" else self.free_bytes / GIB
            return self.write_last_lines(startup.no_memory_lines(self.config, free_gib, TOTAL_BYTES / GIB), 1)
        self.adjust_memory(HOST_MEMORY_BYTES)
        self._join_group(self.group)
        return self._load_and_serve(server)

    def _compile_and_cache(self) -> None:
        """Write the log lines about compilation and the KV cache. Compilation temporarily needs more memory."""
        peak_bytes = 0 if self.has_compile_cache or self.config.eager else COMPILE_PEAK_BYTES
        self.adjust_memory(peak_bytes)
        self.write_log(
            startup.cache_lines(self.config, self.version, self.device, has_compile_cache=self.has_compile_cache)
        )
        self.adjust_memory(-peak_bytes)

    @property
    def moe_backend(self) -> str:
        """Kernel backend of a mixture of experts."""
        return "MARLIN" if self.fault() == "weight-only" else "FLASHINFER_CUTLASS"

    @property
    def has_stale_cache(self) -> bool:
        """True if the compile cache of an earlier start slows the engine down."""
        return self.has_compile_cache and self.fault() == "stale-cache"

    @property
    def headless(self) -> bool:
        """True for a worker of a group, which has no HTTP API."""
        return self.group is not None and self.group.rank > 0

    @property
    def has_lost_peer(self) -> bool:
        """True if another member of the group has disconnected."""
        return self.group is not None and self.group.is_broken

    def _join_group(self, group: Group) -> None:
        """Join the group, and write the log lines before and after that."""
        self.write_log(startup.worker_lines(group.join_lines(self.version)))
        if group.rank and self.fault() == "worker-never-joins":
            self.stop_event.wait()
        group.wait_for_members(self.stop_event)
        if self.stop_event.is_set():
            return
        lines = nccl_lines(group.rank, group.world_size, self.env, uses_sockets=self.fault() == "sockets")
        self.write_log((0, line) for line in lines)
        self.write_log(startup.worker_lines([group.assignment_line()]))

    def _load_and_serve(self, server: Server | None) -> int:
        """Load the model, open the port and serve until stopped."""
        self.write_log(
            () if self.headless else startup.loading_lines(self.config, self.version, self.device, self.moe_backend)
        )
        check_after_weights(self.config, self.version)
        self.set_gpu_memory(int(self.config.utilization * TOTAL_BYTES))
        compiled_file = None if self.config.eager else compile_cache_file(self.env, self._host_path)
        self.has_compile_cache = compiled_file is not None and compiled_file.exists()
        self._compile_and_cache()
        save_compile_cache(compiled_file)
        if self.wait_while_start_hangs():
            return self._exit_code or SIGTERM_EXIT_CODE
        prefix_cache = PrefixCache(self.config)
        self.cache = prefix_cache
        self.counters = self.metrics = Metrics(
            self.config,
            self.version,
            prefix_cache,
            self.config.drafts,
            lambda statistics: self.log(startup.speculation_line(statistics)),
        )
        adapters = load_adapters(self.arguments, self.model, self._host_path)
        self.config = replace(self.config, adapters={adapter.name: adapter for adapter in adapters})
        self.write_log(startup.adapter_lines(adapters))
        if server is not None:
            server.start()
            self.write_log(startup.serving_lines(self.config, self.version))
        try:
            return self.serve_until_stopped()
        finally:
            if self.group is not None:
                self.group.leave()


def compile_cache_file(env: Mapping[str, str], host_path: Callable[[str], Path]) -> Path | None:
    """Return the path of the compiled graph, or None if the cache folder is not on the host."""
    root = env.get(CACHE_VARIABLE)
    folder = host_path(root) if root else None
    return folder / COMPILED_FILE if folder is not None and folder.parent.is_dir() else None


def save_compile_cache(file: Path | None) -> None:
    """Write the compiled graph for the next start."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"compiled\n" * 1000)


def nccl_lines(rank: int, world_size: int, env: Mapping[str, str], *, uses_sockets: bool) -> Iterator[str]:
    """Yield the NCCL log lines of one member after it has joined the group.

    Yields nothing unless NCCL_DEBUG is INFO and the container has an adapter.

    Args:
        world_size: number of ranks.
        env: environment variables of the container.
        uses_sockets: NCCL finds no usable adapter and falls back to sockets.
    """
    adapters = [name for name in env.get("NCCL_IB_HCA", "").split(",") if name]
    if env.get("NCCL_DEBUG") != "INFO" or not adapters:
        return
    interface, address = env.get("NCCL_SOCKET_IFNAME", ""), env.get("VLLM_HOST_IP", "")
    yield f"{NCCL_PREFIX} Bootstrap: Using {interface}:{address}<0>"
    used_adapters = " ".join(f"[{n}]{name}:1/RoCE" for n, name in enumerate(adapters))
    yield (
        f"{NCCL_PREFIX} NET/IB : No device found."
        if uses_sockets
        else f"{NCCL_PREFIX} NET/IB : Using {used_adapters} [RO]; OOB {interface}:{address}<0>"
    )
    network = "Socket" if uses_sockets else "IB"
    yield f"{NCCL_PREFIX} Using network {network}"
    next_rank = (rank + 1) % world_size
    for n in range(1 if uses_sockets else len(adapters)):
        yield f"{NCCL_PREFIX} Channel {n:02d}/0 : {rank}[0] -> {next_rank}[0] [send] via NET/{network}/{n}"
    yield f"{NCCL_PREFIX} comm 0x3fd9c2b0 rank {rank} nranks {world_size} cudaDev 0 nvmlDev 0 busId f01000 commId 0x5a1 - Init COMPLETE"
