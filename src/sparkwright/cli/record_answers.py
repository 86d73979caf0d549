"""What `history`, `incident` and `unlock` ask of hosts, and how the answers are shown."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkwright.cli.hosts import choose
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet import Fleet, Member
from sparkwright.plan.events import Event


def history(pattern: str, last: int, *, json: bool) -> list[int]:
    """Print the acts on each host. Returns the exit codes."""
    answers, codes = _ask(pattern, {"verb": "history"})
    for host, events in answers.items():
        rows = [one for one in events if one["event"] == "history"][:last]
        if json:
            for row in rows:
                print(json_format.dumps({**{k: v for k, v in row.items() if k not in ("event", "time")}, "host": host}))
            continue
        for row in rows:
            for line in _act(host, row):
                print(line)
        if not rows:
            print(f"{host}: nothing was done to its server yet")
    return codes


def incident(pattern: str, run: str, to: str) -> list[int]:
    """Write each host's bundle into a folder. Returns the exit codes."""
    answers, codes = _ask(pattern, {"verb": "incident", "run": run})
    for host, events in answers.items():
        files = [one for one in events if one["event"] == "file"]
        if not files:
            continue
        folder = Path(to) if to else Path("incidents") / host / files[0]["incident"]
        folder = folder / host if to and len(answers) > 1 else folder
        folder.mkdir(parents=True, exist_ok=True)
        for one in files:
            path = folder / Path(one["name"]).name
            path.write_text(one["text"])
            path.chmod(0o600)
        about: dict[str, Any] = next(
            (json_format.loads(one["text"]) for one in files if one["name"] == "about.json"), {}
        )
        print(f"{folder}: {', '.join(sorted(one['name'] for one in files))}")
        if about.get("why"):
            print(f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(about['time']))}  {about['why']}")
    return codes


def unlock(host: str, decide: Callable[[dict[str, Any]], str]) -> int:
    """Show who holds one host's lock, and do what `decide` says: stop, kill, forget, or nothing."""
    chosen = choose(host)
    if len(chosen.hosts) != 1:
        raise Refused("`unlock` takes one host at a time.")
    fleet, member = chosen.fleet, chosen.fleet.members[0]
    try:
        told = next(one for one in _answer(fleet, member, {"verb": "lock"}) if one["event"] == "lock")
        if told["owner"] is None:
            print(f"{member.host.name}: nobody holds the lock")
            return Exit.OK
        how = decide(told)
        if not how:
            print("left as it is")
            return Exit.OK
        for one in _answer(fleet, member, {"verb": "unlock", "how": how, "run": told["owner"]["run"]}):
            print(one.get("text", ""))
    finally:
        fleet.close()
    return Exit.OK


def _ask(pattern: str, header: dict[str, Any]) -> tuple[dict[str, list[Event]], list[int]]:
    """What each host answers, by name, and the exit code of each."""
    chosen = choose(pattern)
    answers: dict[str, list[Event]] = {}

    def ask(member: Member) -> None:
        answers[member.host.name] = _answer(chosen.fleet, member, header)

    try:
        chosen.fleet.each(chosen.fleet.members, ask)
    finally:
        chosen.fleet.close()
    for member in chosen.fleet.members:
        if member.recap is not None:
            print(f"{member.host.name}: {member.recap['msg']}")
    codes = [member.recap["exit"] if member.recap else Exit.OK for member in chosen.fleet.members]
    return {name: answers[name] for name in sorted(answers)}, codes


def _answer(fleet: Fleet, member: Member, header: dict[str, Any]) -> list[Event]:
    """A request's events. Raises Failed with the host's words when it refuses."""
    events = fleet.request(member, header, counted=False)
    refused = next((one for one in events if one["event"] == "recap"), None)
    if refused is not None:
        error = Failed(refused["msg"])
        error.exit = Exit(refused["exit"])
        raise error
    return events


def _act(host: str, row: Event) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    figures = ", ".join(f"{value} {name}" for name, value in (row.get("measured") or {}).items() if value is not None)
    lines = [f"{when}  {host}  {row['what']}  by {row.get('who') or 'unknown'}  (run {row.get('run')})"]
    lines += [f"    {change['field']}: {change['before']} -> {change['after']}" for change in row.get("changed") or ()]
    lines += [f"    {row['image']}"] if row.get("image") else []
    lines += [f"    {row['model']} @ {row['commit']}"] if row.get("model") else []
    lines += [f"    measured: {figures}"] if figures else []
    return lines + ([f"    why: {row['why']}"] if row.get("why") else [])
