"""The `lock` command: look up, through the hosts, the images and models that recipes name, and write spark.lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import ask, entries, image_task, keyed, lock_folder, model_task, save
from sparkwright.console import words
from sparkwright.console.out import error_row
from sparkwright.engines.model import chat_template
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.member import Member, broke, hang_up
from sparkwright.project import lockfile
from sparkwright.project.documents.validation import nearest
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.plan import new_run_id


@dataclass
class Pinned:
    """An existing or missing entry of the lock, with the answer of the registry or the hub."""

    #: image or model
    kind: str
    key: str
    wanted: Recipe
    member: Member
    folder: Path
    old: dict[str, Any] | None
    new: dict[str, Any] | None = None
    error: SparkwrightError | None = None
    rows: list[Any] = field(default_factory=list)
    #: role of a second model; None for the recipe's own model
    role: str | None = None

    @property
    def complete(self) -> bool:
        """True if the entry lacks nothing."""
        return self.old is not None and (self.kind == "model" or bool(self.old["manifests"]))

    @property
    def state(self) -> str:
        """The state of the entry: error, new, moved, completed or same."""
        if self.error is not None:
            return "error"
        if self.old is None:
            return "new"
        if self.rows:
            return "moved"
        return "completed" if not self.complete and (self.new or {}).get("manifests") else "same"

    @property
    def gone(self) -> Any:
        """The pinned digest, if the registry no longer has it."""
        return (self.new or {}).get("gone")

    def sentence(self) -> str:
        """Return the state as text, with a summary of the entry if it is new."""
        if self.state in ("moved", "same"):
            return {"moved": "moved upstream", "same": "as pinned"}[self.state]
        new = self.new or {}
        if self.kind == "model":
            size = sum(file["size_bytes"] for file in new["files"])
            return f"{self.state}: commit {new['commit'][:12]}, {len(new['files'])} files, {units.size(size)}"
        about = [words.short(new["digest"])]
        about += [f"{self.wanted.engine.title} {new['engine_version']}"] if new.get("engine_version") else []
        about += [new["created"][:10]] if new.get("created") else []
        about += [units.size(new["size_bytes"])] if new.get("size_bytes") else []
        return f"{self.state}: {', '.join(about)}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the form of --json."""
        rows = [asdict(row) for row in self.rows]
        found = {"kind": self.kind, "name": self.key, "state": self.state, "rows": rows, "gone": self.gone}
        if self.error is None:
            return found
        return {**found, **error_row(str(self.error), self.error.exit, host=self.member.host.name)}


def pinned_by(selection: Selection, name: str = "") -> list[Pinned]:
    """Return the entries that the recipes of the selected hosts need.

    Args:
        name: only this image, model or recipe.

    Raises:
        Refused: nothing matches.
    """
    found = list(_entries(selection))
    if not found:
        raise Refused("none of these hosts has a recipe.", fix="Add `recipe: NAME` to a host (see recipes/).")
    if not name:
        return found
    named = [entry for entry in found if name in (entry.key, entry.key.partition("@")[0], entry.wanted.name)]
    if not named:
        known = sorted({word for entry in found for word in (entry.key, entry.wanted.name)})
        raise Refused(f"nothing in these hosts' recipes is called {name!r}.", fix=nearest(name, known))
    return named


def pinned_of(selection: Selection, member: Member, wanted: Recipe, lock: lockfile.Lock | None = None) -> list[Pinned]:
    """Return the entries for a recipe's image and models, to be looked up through a host.

    Args:
        lock: the host's lock, if it was already read.
    """
    member.secrets = selection.inventory.secrets(member.host)
    folder = lock_folder(selection.project, member.host)
    named = wanted.file.model
    keys = {"image": wanted.image, "model": lockfile.model_key(named.id, named.revision, named.chosen)}
    known = entries(lock or lockfile.load(folder), wanted)
    found = [Pinned(kind, key, wanted, member, folder, known[kind]) for kind, key in keys.items()]
    for role, model in wanted.file.further.items():
        entry = known["models"][role]
        found.append(Pinned("model", lockfile.model_key(*keyed(model, role)), wanted, member, folder, entry, role=role))
    return found


def _entries(selection: Selection) -> Iterator[Pinned]:
    """Yield each image and model once, to be looked up through the first host that serves it."""
    seen: set[tuple[Path, str]] = set()
    locks: dict[Path, lockfile.Lock] = {}
    for member in selection.fleet.members:
        if not member.host.recipe:
            continue
        folder = lock_folder(selection.project, member.host)
        lock = locks.setdefault(folder, lockfile.load(folder))
        for pinned in pinned_of(selection, member, recipes.recipe_of(selection.project, member.host), lock):
            if (folder, pinned.key) not in seen:
                seen.add((folder, pinned.key))
                yield pinned


def ask_upstream(selection: Selection, entries: Sequence[Pinned], *, follow: bool) -> None:
    """Look up the entries in registries and on the hub, through all hosts in parallel, and disconnect.

    An entry that can't be looked up stores the error.

    Args:
        follow: look up the current meaning of tags and branches, not only the pinned digest.
    """

    def ask_of(member: Member) -> None:
        for n, entry in enumerate(entries):
            if entry.member is member:
                _ask(selection, entry, new_run_id() + f"-{n}", follow=follow)

    members = [member for member in selection.fleet.members if any(entry.member is member for entry in entries)]
    try:
        if members:
            selection.fleet.each(members, ask_of)
    finally:
        hang_up(selection.fleet.members)


def _ask(selection: Selection, entry: Pinned, run_id: str, *, follow: bool) -> None:
    image = entry.kind == "image"
    pinned = entry.old["digest"] if image and entry.old else ""
    task = (
        image_task(entry.wanted, entry.member.host, pinned=pinned, follow=follow)
        if image
        else model_task(entry.wanted, role=entry.role)
    )
    try:
        answer = ask(selection.fleet, entry.member, [task], run_id)[task.id]
        entry.new = {**lockfile.entry(entry.kind, entry.key, answer), "gone": answer.get("gone")}
    except Exception as error:  # such as a full disk or a read-only folder
        entry.error = broke(error)
        return
    if entry.old is not None:
        title = entry.wanted.engine.title
        entry.rows = image_rows(entry.old, entry.new, title) if image else model_rows(entry.old, entry.new)


def write(fresh: Sequence[Pinned]) -> None:
    """Write the new entries to each lock, which is read again in case another command wrote it. Raises Failed."""
    for folder in {entry.folder for entry in fresh}:
        known = lockfile.load(folder)
        for entry in (entry for entry in fresh if entry.folder == folder):
            new = _kept(entry)
            if entry.kind == "image":
                known = known.with_image(entry.key, new)
            else:
                model = entry.wanted.file.model
                id_, revision, file = model.id, model.revision, model.chosen
                if entry.role is not None:
                    id_, revision, file = keyed(entry.wanted.file.further[entry.role], entry.role)
                known = known.with_model(id_, revision, new, file)
        save(known, folder)


def _kept(entry: Pinned) -> dict[str, Any]:
    """Return the new entry, which for the same image keeps what was learnt by running it."""
    new = dict(entry.new or {})
    if entry.state == "completed" and entry.old is not None:
        new.update({key: value for key, value in entry.old.items() if value})
    return new


Entry = Mapping[str, Any]
SHOWN_FILES = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A difference between two entries."""

    what: str
    #: as text; None if absent or unknown
    before: str | None
    #: as text; None if absent or unknown
    after: str | None

    def __str__(self) -> str:
        return f"{self.what:<10} {self.before or 'unknown'} -> {self.after or 'unknown'}"


def image_rows(old: Entry, new: Entry, engine: str) -> list[Row]:
    """Return the differences between two entries of an image; none if they have the same digest, which determines the rest.

    Args:
        engine: title of the engine.
    """
    if old["digest"] == new["digest"]:
        return []
    rows = [Row("digest", words.short(old["digest"]), words.short(new["digest"]))]
    rows += _row(engine, old.get("engine_version"), new.get("engine_version"))
    rows += _row("created", _day(old.get("created")), _day(new.get("created")))
    rows += _row("size", _size(old.get("size_bytes")), _size(new.get("size_bytes")))
    return rows + _row("platforms", ", ".join(old["platforms"]), ", ".join(new["platforms"]))


def model_rows(old: Entry, new: Entry) -> list[Row]:
    """Return the differences between two entries of a model: the commit, and the files added, removed and changed."""
    rows = _row("commit", old["commit"][:12], new["commit"][:12])
    rows += _chat(old, new)
    before, after = ({file["path"]: file for file in entry["files"]} for entry in (old, new))
    added = [after[path] for path in after if path not in before]
    removed = [before[path] for path in before if path not in after]
    changed = [(before[path], after[path]) for path in after if path in before and _differ(before[path], after[path])]
    rows += [Row(f"+ {item['path']}", "absent", _size(item["size_bytes"])) for item in added]
    rows += [Row(f"- {item['path']}", _size(item["size_bytes"]), "absent") for item in removed]
    rows += [Row(f"~ {b['path']}", _content(b), _content(a)) for b, a in changed]
    anew = sum(item["size_bytes"] for item in [*added, *(after_one for _, after_one in changed)])
    return [*rows, Row("to load", "0 B", units.size(anew))] if added or changed else rows


def shown(rows: list[Row]) -> Iterator[str]:
    """Format rows as lines. If there are very many files, only the first are shown."""
    yield from (str(row) for row in rows[: SHOWN_FILES + 6])
    if len(rows) > SHOWN_FILES + 6:
        yield f"... and {len(rows) - SHOWN_FILES - 6} more"


def _row(what: str, before: str | None, after: str | None) -> list[Row]:
    return [] if before == after else [Row(what, before, after)]


def _chat(old: Entry, new: Entry) -> list[Row]:
    """Return the changes in the chat template and the sampling defaults; none if the old ones were never read."""
    if old.get("chat") is None or new.get("chat") is None:
        return []
    return [Row(*change) for change in chat_template.changes(old["chat"], new["chat"])]


def _differ(before: Entry, after: Entry) -> bool:
    return any(before.get(key) != after.get(key) for key in ("sha256", "blob_id", "size_bytes"))


def _content(entry: Entry) -> str:
    return f"{_size(entry['size_bytes'])} {(entry.get('sha256') or entry.get('blob_id') or '')[:8]}"


def _day(created: str | None) -> str | None:
    return created[:10] if created else None


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else units.size(size_bytes)
