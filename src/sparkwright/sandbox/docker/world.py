"""The simulated host around its containers: memory, GPU, ports, the user's folder and the active fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.sandbox.memory import Pool
from sparkwright.sandbox.system import Gpu

if TYPE_CHECKING:
    from sparkwright.sandbox.docker.container import Container


class World:
    """The state that all containers share.

    Args:
        pool: the host's memory.
        gpu: the host's GPU.
        fault: returns the name of the active fault.
        fault_since_s: returns the time at which it was set, in seconds since the epoch.
        home: folder that stands for the simulated user's home.

    Attributes:
        published: running containers by published port.
    """

    def __init__(
        self, pool: Pool, gpu: Gpu, fault: Callable[[], str], fault_since_s: Callable[[], float], home: Path
    ) -> None:
        self.pool = pool
        self.gpu = gpu
        self.fault = fault
        self.fault_since_s = fault_since_s
        self.home = home
        self.published: dict[int, Container] = {}
        self.remove: Callable[[Container], None] = lambda container: None  # for AutoRemove, at its end

    def at_home(self, path: str) -> str:
        """Return the real path of a path on the simulated host."""
        parts = Path(path).parts
        if len(parts) > 2 and parts[1] == "home":
            return str(self.home.joinpath(*parts[3:]))
        return str(self.home.joinpath(*parts[2:])) if parts[1:2] == ("root",) else path
