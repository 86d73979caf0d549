"""The guard service, which watches available memory while verified servers run, and stops a growing server in time.

    python -I -S .../sparkwright/guard service FOLDER

FOLDER contains `service.conf`, which health checks and deploys write, and the service's own files: `service.ring` with the
samples, `service.events` with one action per line, and a lock that is held while the service runs. A second instance exits
immediately.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import time

from sparkwright.guard import samples as memory_samples
from sparkwright.guard.judge import Danger, DangerDetector, Floors
from sparkwright.guard.kill import Target
from sparkwright.guard.process import Writer, lock_in_memory
from sparkwright.guard.samples import Meter

CONF_FILE, RING_FILE, EVENTS_FILE, LOCK_FILE = "service.conf", "service.ring", "service.events", "service.lock"
#: longest pause between two samples, in seconds; sampling then uses less than 0.1 % of a core
MAX_PAUSE_S = 1.0
#: how often samples are written, in seconds: normally, and when available memory is below `NEAR_FLOOR_FACTOR` times the floor
WRITE_INTERVAL_S, NEAR_FLOOR_WRITE_INTERVAL_S, NEAR_FLOOR_FACTOR = 30.0, 0.5, 4
#: a low level counts as expected only after this many seconds, so that a fall in progress does not lower the expected level
MIN_SETTLED_S = 60.0
#: how long the Docker Engine may take to kill a container before its processes are killed directly, in seconds. The engine
#: goes first, because its restart policy would start killed processes again
ENGINE_KILL_TIMEOUT_S = 0.5
#: pause after an action, in seconds
COOLDOWN_S = 15.0
#: how long memory may take to be released after a start's guard has killed a server, in seconds
RELEASE_S = 3.0
#: size limit of the events file in bytes
MAX_EVENTS_BYTES = 64 * 1024


class Server:
    """A verified server, from a row of the conf.

    Attributes:
        verified_bytes: memory that it used when it was verified.
        first_cgroup_bytes: anonymous and shared memory of its cgroup when the conf was read.
    """

    __slots__ = ("cgroup", "first_cgroup_bytes", "name", "target", "verified_bytes")

    def __init__(self, words: list[str], address: str) -> None:
        self.name, container_id, pid, self.verified_bytes = words[0], words[1], int(words[2]), int(words[3])
        self.target = Target(container_id, address)
        if pid > 0:
            self.target.hold_process(pid)
        self.cgroup = find_memory_file(pid)
        self.first_cgroup_bytes = read_memory_bytes(self.cgroup)

    def growth_bytes(self) -> int:
        """Return the growth of its cgroup since the conf was read, in bytes. Cgroups do not include CUDA memory."""
        return read_memory_bytes(self.cgroup) - self.first_cgroup_bytes


class Conf:
    """The servers that the guard watches, and its floors.

    Rows: `server NAME ID PID HELD`, `left BYTES`, `floor BYTES`, `address PATH`, `root FOLDER`, `key KEY`, `of SERVER`,
    `tell WORD` (one for each argument of the command that is started after an action).
    """

    def __init__(self, folder: str) -> None:
        self.rows: dict[str, str] = {}
        self.notify_command: list[str] = []
        server_rows: list[list[str]] = []
        for row in _read_rows(f"{folder}/{CONF_FILE}"):
            name, _, rest = row.partition(" ")
            if name == "server":
                server_rows.append(rest.split(" "))
            elif name == "tell":
                self.notify_command.append(rest)
            else:
                self.rows[name] = rest
        address = self.rows.get("address", "")
        self.servers = [Server(words, address) for words in server_rows if len(words) == 4]

    def number(self, name: str) -> int:
        """Return a row's number, or 0 if it is missing."""
        value = self.rows.get(name, "")
        return int(value) if value.isdigit() else 0


class Service:
    """The guard of all of a host's servers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.conf_mtime_ns = -2
        self.ended = False
        self.action_time_s = self.next_kill_s = 0.0
        self.victim: Server | None = None
        self.conf = Conf(folder)
        self.meter = Meter(self.conf.rows.get("root", ""))
        self.ring = memory_samples.Ring(
            f"{folder}/{RING_FILE}", {"state": "guarding", "what": "serving", "pid": str(os.getpid())}
        )
        self.ring.set_header_row("locked", lock_in_memory() or "yes")
        self.settled_lowest = self.minute_lowest = self.meter.total
        self.minute_start_s = time.monotonic()
        self._reload()

    def _reload(self) -> None:
        """Reread the conf if it has changed."""
        mtime_ns = _modified_ns(f"{self.folder}/{CONF_FILE}")
        if mtime_ns == self.conf_mtime_ns:
            return
        try:
            self.conf = Conf(self.folder)
        except (OSError, ValueError, IndexError):
            return
        self.conf_mtime_ns = mtime_ns
        verified_available = self.conf.number("left")
        # the server has been verified again, so the lowest level so far no longer counts
        if self.ring.header.get("left") != str(verified_available):
            self.settled_lowest = self.minute_lowest = self.meter.total
        rows = {"key": "", **self.conf.rows, "left": str(verified_available)}
        rows["name"] = " ".join(server.name for server in self.conf.servers)
        rows["id"] = self.conf.servers[0].target.id if self.conf.servers else ""
        rows["boot"] = memory_samples.read_boot_id(self.conf.rows.get("root", ""))
        rows["server"] = rows.get("of", "")
        for name in ("boot", "key", "name", "id", "left", "server"):
            self.ring.set_header_row(name, rows.get(name, ""))
        self.ring.set_header_row("total", str(self.meter.total))
        self.detector = DangerDetector(
            Floors(self.meter.total, self.conf.number("floor"), verified_available, verified_available)
        )

    def run(self) -> None:
        """Sample until stopped."""
        _signal.signal(_signal.SIGTERM, self._end)
        writer = Writer(self.ring.flush, WRITE_INTERVAL_S)
        while not self.ended:
            self._reload()
            danger = self._sample()
            if danger is not None and self.conf.servers:
                self._act(danger)
            if self.victim is not None:
                self._finish_kill()
            is_near_floor = self.meter.available < NEAR_FLOOR_FACTOR * self.detector.floors.floor
            writer.interval_s = NEAR_FLOOR_WRITE_INTERVAL_S if is_near_floor or self.victim else WRITE_INTERVAL_S
            time.sleep(self.detector.pause_s(MAX_PAUSE_S) if self.conf.servers else MAX_PAUSE_S)
        self.ring.set_header_row("state", "ended")
        writer.stop()

    def _end(self, *signal: object) -> None:
        self.ended = True

    def _sample(self) -> Danger | None:
        try:
            self.meter.read()
        except (OSError, ValueError):
            return None
        meter, now_s = self.meter, time.monotonic()
        self.ring.add(time.time(), meter.available, meter.free, meter.stall_s)
        if now_s - self.minute_start_s > MIN_SETTLED_S:
            self.settled_lowest, self.minute_lowest, self.minute_start_s = (
                min(self.settled_lowest, self.minute_lowest),
                meter.available,
                now_s,
            )
            self.ring.set_header_row("lowest", f"{self.settled_lowest} {time.time():.3f}")
            self.detector.floors.expected = min(
                self.settled_lowest, self.detector.floors.verified_available or self.settled_lowest
            )
        self.minute_lowest = min(self.minute_lowest, meter.available)
        return self.detector.add_sample(now_s, meter.available, meter.free, meter.stall_s)

    # -- in danger ---------------------------------------------------------------------------------------------------

    def _act(self, danger: Danger) -> None:
        """Stop the server that grew most, unless the guard of a start is active and acts itself."""
        now_s = time.monotonic()
        is_waiting = self.victim is not None or now_s - self.action_time_s < COOLDOWN_S
        must_kill_stopping = self.victim and not danger.is_graceful and not self.next_kill_s
        if (is_waiting and not must_kill_stopping) or is_start_guarded(self.folder):
            return
        server = self.victim or self._select_victim()
        method = "stopped" if danger.is_graceful else "killed"
        error = server.target.stop_by_engine() if danger.is_graceful else server.target.kill_by_engine()
        self.victim, self.action_time_s = server, now_s
        self.next_kill_s = 0.0 if danger.is_graceful and not error else now_s + ENGINE_KILL_TIMEOUT_S
        self.ring.set_header_row("danger", f"{danger.kind} {danger.available} {danger.free} {int(danger.rate)}")
        self._record_event(server, method, danger)

    def _select_victim(self) -> Server:
        """Return the server whose cgroup grew most, or the largest if none has grown: cgroups do not include CUDA memory."""
        fastest_growing = max(self.conf.servers, key=Server.growth_bytes)
        if fastest_growing.growth_bytes() > self.detector.floors.total // 200:
            return fastest_growing
        return max(self.conf.servers, key=lambda server: server.verified_bytes)

    def _finish_kill(self) -> None:
        """Kill the processes that the Docker Engine has not killed. When all have ended, start the check that reports it."""
        assert self.victim is not None
        target, now_s = self.victim.target, time.monotonic()
        if target.has_ended or (target.pid == 0 and now_s > self.action_time_s + COOLDOWN_S):
            self.victim, self.next_kill_s = None, 0.0
            _start_program(self.conf.notify_command)
        elif self.next_kill_s and now_s > self.next_kill_s:
            self.next_kill_s = now_s + ENGINE_KILL_TIMEOUT_S
            target.kill_by_engine()
            target.kill_processes()

    def _record_event(self, server: Server, method: str, danger: Danger) -> None:
        """Append an action to EVENTS_FILE: time, method, name, id, kind, available, free, rate."""
        words = (f"{time.time():.3f}", method, server.name, server.target.id, danger.kind)
        line = " ".join((*words, str(danger.available), str(danger.free), str(int(danger.rate)))) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(f"{self.folder}/{EVENTS_FILE}", flags, 0o600)
            try:
                if os.fstat(file).st_size > MAX_EVENTS_BYTES:
                    os.ftruncate(file, 0)
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError:  # a full disk must not stop the guard
            pass


def is_start_guarded(folder: str) -> bool:
    """Return True if the guard of a start is active.

    It counts as active for another `RELEASE_S` after a kill: a CUDA context's memory is released after its process has ended, and
    must not cause another server to be stopped.
    """
    for name in os.listdir(folder):  # noqa: PTH208
        if not name.endswith(".ring") or name == RING_FILE:
            continue
        try:
            with open(f"{folder}/{name}", "rb") as file:
                rows = file.read(memory_samples.HEADER_BYTES).decode(errors="replace").splitlines()
            header = dict(row.partition(" ")[::2] for row in rows)
            if header.get("state") == "guarding":
                os.kill(int(header["pid"]), 0)
                return True
            if header.get("state") == "killed" and 0 <= time.time() - float(header["killed"]) < RELEASE_S:
                return True
        except (OSError, ValueError, KeyError):
            continue
    return False


def find_memory_file(pid: int) -> str:
    """Return the path of the file with the memory counters of a process's cgroup; empty if there is none."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            rows = file.read().splitlines()
    except OSError:
        return ""
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers == "":
            file_name = f"/sys/fs/cgroup{path}/memory.stat"
        elif "memory" in controllers.split(","):
            file_name = f"/sys/fs/cgroup/memory{path}/memory.stat"
        else:
            continue
        if os.access(file_name, os.R_OK):
            return file_name
    return ""


def read_memory_bytes(file_name: str) -> int:
    """Return the anonymous and shared memory of a cgroup in bytes."""
    if not file_name:
        return 0
    try:
        with open(file_name) as file:
            rows = dict(row.split(" ", 1) for row in file.read().splitlines())
        return int(rows.get("anon") or rows.get("total_rss") or 0) + int(
            rows.get("shmem") or rows.get("total_shmem") or 0
        )
    except (OSError, ValueError):
        return 0


def _read_rows(path: str) -> list[str]:
    """Return the rows of the conf; empty if it does not exist, because no server has been verified yet."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return -1


def _start_program(words: list[str]) -> None:
    """Start a program without waiting for it, and reap earlier ones that have exited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    if words:
        try:
            os.posix_spawn(words[0], words, dict(os.environ))
        except OSError:
            pass


def main(folder: str) -> int:
    """Guard until SIGTERM. Return 0, also when another instance is already running, or 1 if the guard cannot work."""
    lock = os.open(f"{folder}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    try:
        _archive_samples(folder)
        Service(folder).run()
    except (OSError, ValueError, IndexError) as error:
        os.write(2, f"cannot guard: {error}\n".encode())
        return 1
    return 0


def _archive_samples(folder: str) -> None:
    """Rename the ring file of an earlier boot, so that a health check can report it."""
    path = f"{folder}/{RING_FILE}"
    try:
        header, _ = memory_samples.read(path)
        boot_id = memory_samples.read_boot_id(Conf(folder).rows.get("root", ""))
        if header.get("state") == "guarding" and header.get("boot") not in (None, "", boot_id):
            os.rename(path, f"{folder}/serving-{int(time.time())}.ring")  # noqa: PTH104
    except (OSError, ValueError):
        return
