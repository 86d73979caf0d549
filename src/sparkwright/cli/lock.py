"""The `lock` command: pin the images and models that recipes name, update the pins, or check for upstream changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparkwright.app.prompts import confirm
from sparkwright.cli.framework.command import command
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.errors import Exit, Refused

if TYPE_CHECKING:
    from sparkwright.app.stores.lock_update import LockEntry


@command(
    optional=["update"],
    help={
        "host": "pin the recipes of these hosts, which query the registry and the hub (default: all but sandboxes)",
        "update": "pin the current targets of tags and branches: all, or NAME (an image, model or recipe); asks first",
        "check": "change nothing; exit code 2 if an entry is missing, or a tag or branch has moved upstream",
        "yes": "do not ask for confirmation",
        "json": "one JSON object per entry that is looked up",
    },
)
def lock(
    host: str = "", update: str | None = None, check: bool = False, yes: bool = False, json: bool = False
) -> list[Exit]:
    """Pin images and models in spark.lock.

    Adds missing entries. --update shows the differences, asks, and writes them; exit code 2 if you decline. --check only reports
    them.
    """
    if check and update:
        raise Refused("--check and --update can't be combined.", fix="Pass one of them.")
    from sparkwright.app.connect import connect_hosts, default_pattern

    selection = connect_hosts(host or default_pattern())
    from sparkwright.app.stores import lock_update
    from sparkwright.project import lockfile

    follow_tags = bool(update) or check
    entries = lock_update.select_entries(selection, update if isinstance(update, str) else "")
    entries_to_query = [entry for entry in entries if follow_tags or not entry.is_complete]
    lock_update.query_upstream(selection, entries_to_query, follow_tags=follow_tags)
    for entry in entries_to_query:
        _print_entry(entry, json=json)
    error_codes = [entry.error.exit for entry in entries_to_query if entry.error is not None]
    if check:
        return [*error_codes, *(Exit.CHANGES for entry in entries_to_query if entry.state in ("moved", "new"))]
    changed_entries = [entry for entry in entries_to_query if entry.state in ("new", "moved", "completed")]
    lock_names = ", ".join(_lock_names(changed_entries or entries)) or lockfile.FILE_NAME
    if any(entry.state == "moved" for entry in changed_entries) and not confirm(
        f"Write this to {lock_names}?", yes=yes
    ):
        print_text(f"{lock_names}: unchanged.", file=sys.stderr)
        return [*error_codes, Exit.CHANGES]
    lock_update.write_locks(changed_entries)
    if not json:
        for name in _lock_names(changed_entries):
            states = ", ".join(f"{entry.key} {entry.state}" for entry in changed_entries if _lock_name(entry) == name)
            print_text(f"{name}: {states}.")
        if not changed_entries:
            print_text(f"{lock_names}: unchanged.")
    return error_codes


def _lock_names(entries: Iterable[LockEntry]) -> list[str]:
    """Return the names of the locks that contain these entries: `spark.lock`, and that of a sandbox."""
    return list(dict.fromkeys(map(_lock_name, entries)))


def _lock_name(entry: LockEntry) -> str:
    from sparkwright.project import lockfile
    from sparkwright.project.documents import document

    return document.format_path(entry.folder / lockfile.FILE_NAME)


def _print_entry(entry: LockEntry, *, json: bool) -> None:
    from sparkwright.app.stores import lock_update

    if json:
        return print_json_line(entry.to_json())
    if entry.error is not None:
        return print_prose(f"{entry.key}: {entry.error}", file=sys.stderr)
    warning = "The registry no longer has the pinned digest: copy it from a host that has it (`invoke images.copy`)."
    lines = [*lock_update.format_differences(entry.differences), *([warning] if entry.missing_digest else [])]
    return print_prose("\n  ".join([f"{entry.key}: {entry.format_state()}", *lines]))


TASKS = {"": [lock]}
