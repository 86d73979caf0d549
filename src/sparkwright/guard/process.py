"""Lock memory, raise the priority and run a writer thread, for a process that must work while the host is short of memory."""

from __future__ import annotations

import _thread
import os
import time

MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
#: stack size of the writer thread; the default of 8 MB would count against the limit of locked memory
STACK_BYTES = 128 * 1024
#: how often samples are written, in seconds: normally, and when little memory is available
WRITE_INTERVAL_S, NEAR_FLOOR_WRITE_INTERVAL_S = 1.0, 0.2


def lock_in_memory() -> str:
    """Lock this process in memory and raise its priority, if allowed. Return the reason why it is not locked, or ""."""
    reason = _lock_memory()
    for adjust in (_set_realtime_priority, _raise_priority, _protect_from_oom_killer):
        try:
            adjust()
        except OSError:  # only root is allowed to do this
            continue
    return reason


def _lock_memory() -> str:
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0:
            return ""
        return os.strerror(ctypes.get_errno())
    except (ImportError, OSError, AttributeError) as error:
        return str(error)


def _set_realtime_priority() -> None:
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _raise_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -10)


def _protect_from_oom_killer() -> None:
    """Make this process the OOM killer's last choice."""
    file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, b"-999")
    finally:
        os.close(file)


class Writer:
    """A thread that calls `flush` periodically, so that the sampling thread never waits for a disk.

    Args:
        flush: writes new samples.
        interval_s: interval of the calls, in seconds.
    """

    def __init__(self, flush, interval_s: float = WRITE_INTERVAL_S) -> None:  # type: ignore[no-untyped-def]
        self._flush, self.interval_s = flush, interval_s
        self._stopped = False
        self._end_lock = _thread.allocate_lock()
        self._end_lock.acquire()
        _thread.stack_size(STACK_BYTES)
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            while not self._stopped:
                next_write_s = time.monotonic() + self.interval_s
                self._write()
                while not self._stopped and time.monotonic() < min(
                    next_write_s, next_write_s - WRITE_INTERVAL_S + self.interval_s
                ):
                    time.sleep(min(NEAR_FLOOR_WRITE_INTERVAL_S, self.interval_s))
        finally:
            self._end_lock.release()

    def _write(self) -> None:
        try:
            self._flush()
        except OSError:  # the disk is full or has failed, so the samples stay in memory
            pass

    def stop(self) -> None:
        """Stop after writing the remaining samples, waiting at most two seconds for the disk."""
        self._stopped = True
        if self._end_lock.acquire(True, 2.0):
            self._write()
