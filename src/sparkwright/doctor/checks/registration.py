"""Register the checks of a host with a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparkwright.doctor.host import Finding, Host

Check = Callable[[Host], Iterator[Finding]]

#: checks by name, in the order of their findings
CHECKS: dict[str, Check] = {}
#: names of the checks that run once for each server on a machine; all others check the machine itself
SERVER_CHECKS: set[str] = set()


def register_check(name: str, *, per_server: bool = False) -> Callable[[Check], Check]:
    """Register the decorated function as a check."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        if per_server:
            SERVER_CHECKS.add(name)
        return check

    return register
