"""The end of a playbook run on the laptop, also after Ctrl-C: disconnect from the hosts, and report a run that goes on there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkwright.errors import Inconclusive
from sparkwright.fleet.fleet import Fleet


@contextmanager
def ending(fleet: Fleet, left_behind: Callable[[Inconclusive], None] = lambda error: None) -> Iterator[None]:
    """Close the fleet after the block that runs it.

    Args:
        left_behind: called with the error if the laptop leaves while hosts are working.
    """
    try:
        yield
    except Inconclusive as error:
        left_behind(error)
        raise
    except KeyboardInterrupt:  # outside the fleet's waits, which handle Ctrl-C themselves
        names = ",".join(member.host.name for member in fleet.members)
        stopped = Inconclusive("stopped by Ctrl-C.", fix=f"What was begun goes on: `invoke attach --host {names}`.")
        left_behind(stopped)
        raise stopped from None
    finally:
        fleet.close()
