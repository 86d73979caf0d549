"""`invoke lock`: fill spark.lock, move on in it, or see whether something moved upstream. The hosts ask, the laptop writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from invoke.tasks import task

from sparkwright import units
from sparkwright.app.outcome import reporting, worst
from sparkwright.app.prompts import agreed
from sparkwright.console.out import error_row, say, say_json
from sparkwright.errors import Exit, Refused, SparkwrightError

HELP = {
    "host": "for the recipes of these hosts; they ask the registry and the hub",
    "update": "move on to what tags and branches mean now, all or NAME (an image, a model, a recipe): shows old -> new, asks",
    "check": "change nothing: exit 2 when a tag or branch has moved upstream",
    "yes": "do not ask",
    "json": "one JSON line an entry, nothing else on stdout",
    "debug": "show the traceback of an error",
}


@dataclass
class Pinned:
    """An entry of the lock, or one that is missing, and what its registry or hub said. kind: image or model."""

    kind: str
    key: str
    wanted: Any
    member: Any
    folder: Path
    old: dict[str, Any] | None
    new: dict[str, Any] | None = None
    error: SparkwrightError | None = None
    rows: list[Any] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.old is not None and (self.kind == "model" or bool(self.old["manifests"]))

    @property
    def state(self) -> str:
        """error, new, moved, completed or same."""
        if self.error is not None:
            return "error"
        if self.old is None:
            return "new"
        if self.rows:
            return "moved"
        return "completed" if not self.complete and (self.new or {}).get("manifests") else "same"


@task(help=HELP, optional=["update"])
@reporting
def lock(
    context: object,
    host: str = "",
    update: str | None = None,
    check: bool = False,
    yes: bool = False,
    json: bool = False,
    debug: bool = False,
) -> int:
    """Fill in what spark.lock lacks; --update moves on, --check only looks."""
    if check and update:
        raise Refused("--check changes nothing and --update does.", fix="Give one of them.")
    from sparkwright.app.connect import everyone, reach
    from sparkwright.fleet.fleet import hang_up

    chosen = reach(host or everyone())
    entries = list(_entries(chosen))
    if isinstance(update, str):
        entries = _named(entries, update)
    follow = bool(update) or check
    asked = [one for one in entries if follow or not one.complete]
    try:
        _ask(chosen, asked, follow=follow)
    finally:
        hang_up(chosen.fleet.members)
    for one in asked:
        _show(one, json=json)
    failed = [int(one.error.exit) for one in asked if one.error is not None]
    if check:
        pending = any(one.state in ("moved", "new") for one in asked)
        return int(worst([*failed, int(Exit.CHANGES) if pending else int(Exit.OK)]))
    fresh = [one for one in asked if one.state in ("new", "moved", "completed")]
    if any(one.state == "moved" for one in fresh) and not agreed("Write this to spark.lock?", yes=yes):
        say("spark.lock is as it was.", file=sys.stderr)
        return int(worst([*failed, int(Exit.CHANGES)]))
    _write(fresh)
    if not json:
        say(f"spark.lock: {_counted(fresh)}." if fresh else "spark.lock: unchanged.")
    return int(worst(failed))


def _entries(chosen: Any) -> Iterator[Pinned]:
    """What the recipes of the chosen hosts pin, each once, asked through the first host that serves it."""
    from sparkwright.app.plans import planning
    from sparkwright.app.plans.pinning import lock_folder
    from sparkwright.project.lock import lockfile

    seen: set[tuple[Path, str]] = set()
    locks: dict[Path, Any] = {}
    for member in chosen.fleet.members:
        if not member.host.recipe:
            continue
        wanted = planning.recipe_of(chosen.project, member.host)
        member.secrets = chosen.inventory.secrets(member.host)
        folder = lock_folder(chosen.project, member.host)
        known = locks.setdefault(folder, lockfile.load(folder))
        model = wanted.file.model
        both = (
            ("image", wanted.image, known.image(wanted.image)),
            ("model", lockfile.model_key(model.id, model.revision), known.model(model.id, model.revision)),
        )
        for kind, key, old in both:
            if (folder, key) not in seen:
                seen.add((folder, key))
                yield Pinned(kind, key, wanted, member, folder, old)
    if not seen:
        raise Refused("none of these hosts has a recipe.", fix="Add `recipe: NAME` to a host (see recipes/).")


def _named(entries: list[Pinned], name: str) -> list[Pinned]:
    from sparkwright.project.documents.checked import nearest

    found = [one for one in entries if name in (one.key, one.key.partition("@")[0], one.wanted.name)]
    if not found:
        known = sorted({name for one in entries for name in (one.key, one.wanted.name)})
        raise Refused(f"nothing in these hosts' recipes is called {name!r}.", fix=nearest(name, known))
    return found


def _ask(chosen: Any, entries: list[Pinned], *, follow: bool) -> None:
    """Fill in what upstream says, host by host in parallel; an entry that can't be asked keeps its error."""
    from sparkwright.app.plans.pinning import ask, image_task, model_task
    from sparkwright.app.stores import lock_diff
    from sparkwright.fleet.fleet import broke
    from sparkwright.project.lock import lockfile
    from sparkwright.protocol.plan import new_run_id

    def one_host(member: Any) -> None:
        for one in (one for one in entries if one.member is member):
            pinned = one.old["digest"] if one.kind == "image" and one.old else ""
            about = (
                image_task(one.wanted, member.host, pinned=pinned, follow=follow)
                if one.kind == "image"
                else model_task(one.wanted)
            )
            try:
                said = ask(chosen.fleet, member, [about], new_run_id() + f"-{entries.index(one)}")[one.kind]
                entry = lockfile.image_entry if one.kind == "image" else lockfile.model_entry
                one.new = {**entry(one.key, said), "gone": said.get("gone")}
            except Exception as error:  # a full disk, a folder that is read-only
                one.error = broke(error)
                continue
            if one.old is not None and one.new is not None:
                one.rows = getattr(lock_diff, one.kind)(one.old, one.new)

    members = [member for member in chosen.fleet.members if any(one.member is member for one in entries)]
    if members:
        chosen.fleet.each(members, one_host)


def _show(one: Pinned, *, json: bool) -> None:
    from sparkwright.app.stores import lock_diff

    if json:
        rows = [{"what": row.what, "before": row.before, "after": row.after} for row in one.rows]
        said = {
            "kind": one.kind,
            "name": one.key,
            "state": one.state,
            "rows": rows,
            "gone": (one.new or {}).get("gone"),
        }
        say_json(
            {
                **said,
                **(
                    error_row(str(one.error), one.error.exit, host=one.member.host.name)
                    if one.error is not None
                    else {}
                ),
            }
        )
        return
    if one.error is not None:
        say(f"{one.key}: {one.error}", file=sys.stderr)
        return
    say(f"{one.key}: {_state(one)}")
    for line in lock_diff.shown(one.rows):
        say(f"  {line}")
    if (one.new or {}).get("gone"):
        say("  The pinned digest is gone upstream: hosts that have it are the only source (`invoke images.copy`).")


def _state(one: Pinned) -> str:
    from sparkwright.console import words

    new = one.new or {}
    if one.state == "moved":
        return "moved upstream"
    if one.state == "same":
        return "as pinned"
    if one.kind == "model":
        size = sum(file["size_bytes"] for file in new["files"])
        return f"{one.state}: commit {new['commit'][:12]}, {len(new['files'])} files, {units.size(size)}"
    about = [words.short(new["digest"])]
    about += [f"vLLM {new['engine_version']}"] if new.get("engine_version") else []
    about += [new["created"][:10]] if new.get("created") else []
    about += [units.size(new["size_bytes"])] if new.get("size_bytes") else []
    return f"{one.state}: {', '.join(about)}"


def _write(fresh: list[Pinned]) -> None:
    """Into each lock at once, read anew: another command may have written in between."""
    from sparkwright.errors import Failed
    from sparkwright.project.lock import lockfile

    for folder in {one.folder for one in fresh}:
        known = lockfile.load(folder)
        for one in (one for one in fresh if one.folder == folder):
            entry = _kept(one)
            if one.kind == "image":
                known = known.with_image(one.key, entry)
            else:
                model = one.wanted.file.model
                known = known.with_model(model.id, model.revision, entry)
        try:
            known.save(folder)
        except OSError as error:
            raise Failed(f"spark.lock can't be written: {error}.") from None


def _kept(one: Pinned) -> dict[str, Any]:
    """The new entry; of the same image, what was learnt by running it stays."""
    new = dict(one.new or {})
    if one.state == "completed" and one.old is not None:
        new.update({key: value for key, value in one.old.items() if value})
    return new


def _counted(fresh: list[Pinned]) -> str:
    return ", ".join(f"{one.key} {one.state}" for one in fresh)


TASKS = [lock]
