"""The `lock` command: look up, through the hosts, the images and models that recipes name, and write spark.lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import (
    image_task,
    lock_entries,
    lock_folder,
    model_key_parts,
    model_task,
    run_lock_tasks,
    save_lock,
)
from sparkwright.console import formatters
from sparkwright.console.command_output import error_row
from sparkwright.console.events.subscriber import NoteLines
from sparkwright.engines.model import chat_template
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.member import Member, close_links, convert_error
from sparkwright.project import lockfile
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.inventory import secret_source
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.plan import new_run_id

EntryData = Mapping[str, Any]
MAX_SHOWN_ROWS = 18
#: fields by which changed files are recognized
CONTENT_KEYS = ("sha256", "blob_id", "size_bytes")


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """A difference between two entries, as text."""

    what: str
    #: None if absent or unknown
    before: str | None
    #: None if absent or unknown
    after: str | None

    def __str__(self) -> str:
        return f"{self.what:<10} {self.before or 'unknown'} -> {self.after or 'unknown'}"


@dataclass
class LockEntry:
    """An entry that the lock has or needs, with the answer from the registry or the hub."""

    #: `image` or `model`
    kind: str
    #: key in spark.lock
    key: str
    recipe: Recipe
    #: host that looks up the entry
    member: Member
    #: folder of the lock
    folder: Path
    #: data in the lock; None if the entry is missing
    old_data: dict[str, Any] | None
    #: data from the registry or the hub
    new_data: dict[str, Any] | None = None
    #: error of the lookup
    error: SparkwrightError | None = None
    differences: list[EntryDifference] = field(default_factory=list)
    #: role of a second model; None for the recipe's own model
    role: str | None = None

    @property
    def is_complete(self) -> bool:
        """True if the lock has the entry with all its data."""
        return self.old_data is not None and (self.kind == "model" or bool(self.old_data["manifests"]))

    @property
    def state(self) -> str:
        """The state of the entry: error, new, moved, completed or same."""
        if self.error is not None:
            return "error"
        if self.old_data is None:
            return "new"
        if self.differences:
            return "moved"
        return "completed" if not self.is_complete and (self.new_data or {}).get("manifests") else "same"

    @property
    def missing_digest(self) -> str | None:
        """The pinned digest if the registry no longer has it, otherwise None."""
        is_gone = bool(
            (self.new_data or {}).get("gone")
        )  # a boolean, or null if not checked: see the `lock_image` module
        return str(self.old_data["digest"]) if is_gone and self.old_data else None

    def format_state(self) -> str:
        """Return the state as text, with a summary of the entry if it is new."""
        if self.state in ("moved", "same"):
            return {"moved": "moved upstream", "same": "as pinned"}[self.state]
        new_data = self.new_data or {}
        if self.kind == "model":
            size = units.format_size(sum(file["size_bytes"] for file in new_data["files"]))
            return f"{self.state}: commit {new_data['commit'][:12]}, {len(new_data['files'])} files, {size}"
        parts = [formatters.truncate_value(new_data["digest"])]
        parts += [f"{self.recipe.engine.title} {new_data['engine_version']}"] if new_data.get("engine_version") else []
        parts += [new_data["created"][:10]] if new_data.get("created") else []
        parts += [units.format_size(new_data["size_bytes"])] if new_data.get("size_bytes") else []
        return f"{self.state}: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the form of --json."""
        rows = [asdict(row) for row in self.differences]
        fields = {"kind": self.kind, "name": self.key, "state": self.state, "rows": rows, "gone": self.missing_digest}
        if self.error is None:
            return fields
        return {**fields, **error_row(str(self.error), self.error.exit, host=self.member.host.name)}


def select_entries(selection: Selection, name: str = "") -> list[LockEntry]:
    """Return the entries that the recipes of the selected hosts need.

    Args:
        name: only this image, model or recipe.

    Raises:
        Refused: nothing matches.
    """
    all_entries = list(_all_entries(selection))
    if not all_entries:
        raise Refused("none of these hosts has a recipe.", fix="Add `recipe: NAME` to a host (see recipes/).")
    if not name:
        return all_entries
    matches = [entry for entry in all_entries if name in (entry.key, entry.key.partition("@")[0], entry.recipe.name)]
    if not matches:
        names = sorted({known_name for entry in all_entries for known_name in (entry.key, entry.recipe.name)})
        raise Refused(f"nothing in these hosts' recipes is called {name!r}.", fix=suggest_name(name, names))
    return matches


def recipe_entries(
    selection: Selection, member: Member, recipe: Recipe, lock: lockfile.Lock | None = None
) -> list[LockEntry]:
    """Return the entries for a recipe's image and models, which a host will look up.

    Args:
        lock: the host's lock, if it has already been read.
    """
    member.secrets = secret_source.read_secrets(member.host)
    folder = lock_folder(selection.project, member.host)
    model_settings = recipe.file.model
    keys = {
        "image": recipe.image,
        "model": lockfile.model_key(model_settings.id, model_settings.revision, model_settings.file_key),
    }
    pins = lock_entries(lock or lockfile.load(folder), recipe)
    entries = [LockEntry(kind, key, recipe, member, folder, pins[kind]) for kind, key in keys.items()]
    for role, model in recipe.file.further_models.items():
        key = lockfile.model_key(*model_key_parts(model, role))
        entries.append(LockEntry("model", key, recipe, member, folder, pins["models"][role], role=role))
    return entries


def _all_entries(selection: Selection) -> Iterator[LockEntry]:
    """Yield an entry for each image and model. The first host that serves it looks it up."""
    yielded_keys: set[tuple[Path, str]] = set()
    locks: dict[Path, lockfile.Lock] = {}
    for member in selection.fleet.members:
        if not member.host.recipe:
            continue
        folder = lock_folder(selection.project, member.host)
        lock = locks.setdefault(folder, lockfile.load(folder))
        for lock_entry in recipe_entries(
            selection, member, recipes.load_host_recipe(selection.project, member.host), lock
        ):
            if (folder, lock_entry.key) not in yielded_keys:
                yielded_keys.add((folder, lock_entry.key))
                yield lock_entry


def query_upstream(selection: Selection, entries: Sequence[LockEntry], *, follow_tags: bool) -> None:
    """Look up the entries in registries and on the hub, through all hosts in parallel, and disconnect.

    The hosts' notes are printed. The error of a failed query is stored in its entry.

    Args:
        follow_tags: query the current targets of tags and branches too, not only the pinned digest.
    """

    def query_through(member: Member) -> None:
        for n, entry in enumerate(entries):
            if entry.member is member:
                _query_entry(selection, entry, new_run_id() + f"-{n}", follow_tags=follow_tags)

    members = [member for member in selection.fleet.members if any(entry.member is member for entry in entries)]
    selection.fleet.subscribers.append(NoteLines())
    try:
        if members:
            selection.fleet.run_parallel(members, query_through)
    finally:
        close_links(selection.fleet.members)


def _query_entry(selection: Selection, entry: LockEntry, run_id: str, *, follow_tags: bool) -> None:
    is_image = entry.kind == "image"
    pinned_digest = entry.old_data["digest"] if is_image and entry.old_data else ""
    task = (
        image_task(entry.recipe, entry.member.host, pinned_digest=pinned_digest, follow_tag=follow_tags)
        if is_image
        else model_task(entry.recipe, role=entry.role)
    )
    try:
        answer = run_lock_tasks(selection.fleet, entry.member, [task], run_id)[task.id]
        entry.new_data = {**lockfile.build_entry(entry.kind, entry.key, answer), "gone": answer.get("gone")}
    except Exception as error:  # for example a full disk
        entry.error = convert_error(error)
        return
    if entry.old_data is not None:
        engine_title = entry.recipe.engine.title
        entry.differences = (
            compare_images(entry.old_data, entry.new_data, engine_title)
            if is_image
            else compare_models(entry.old_data, entry.new_data)
        )


def write_locks(new_entries: Sequence[LockEntry]) -> None:
    """Add the new entries to their locks, which are read again in case another command has changed them. Raises Failed."""
    for folder in {entry.folder for entry in new_entries}:
        lock = lockfile.load(folder)
        for entry in (entry for entry in new_entries if entry.folder == folder):
            new_data = dict(entry.new_data or {})
            if entry.state == "completed" and entry.old_data is not None:  # the digest is the same: keep its other data
                new_data.update({key: value for key, value in entry.old_data.items() if value})
            if entry.kind == "image":
                lock = lock.with_image(entry.key, new_data)
            else:
                model = entry.recipe.file.model
                id_, revision, suffix = model.id, model.revision, model.file_key
                if entry.role is not None:
                    id_, revision, suffix = model_key_parts(entry.recipe.file.further_models[entry.role], entry.role)
                lock = lock.with_model(id_, revision, new_data, suffix)
        save_lock(lock, folder)


def compare_images(old_entry: EntryData, new_entry: EntryData, engine_title: str) -> list[EntryDifference]:
    """Return the differences between two entries of an image, or none if the digests are equal.

    Args:
        engine_title: title of the engine.
    """
    if old_entry["digest"] == new_entry["digest"]:
        return []
    differences = [
        EntryDifference(
            "digest", formatters.truncate_value(old_entry["digest"]), formatters.truncate_value(new_entry["digest"])
        )
    ]
    differences += _compare_values(engine_title, old_entry.get("engine_version"), new_entry.get("engine_version"))
    differences += _compare_values(
        "created", _format_day(old_entry.get("created")), _format_day(new_entry.get("created"))
    )
    differences += _compare_values(
        "size", _format_size(old_entry.get("size_bytes")), _format_size(new_entry.get("size_bytes"))
    )
    return differences + _compare_values(
        "platforms", ", ".join(old_entry["platforms"]), ", ".join(new_entry["platforms"])
    )


def compare_models(old_entry: EntryData, new_entry: EntryData) -> list[EntryDifference]:
    """Return the differences between two entries of a model: the commit, and the files added, removed and changed."""
    differences = _compare_values("commit", old_entry["commit"][:12], new_entry["commit"][:12])
    if old_entry.get("chat") is not None and new_entry.get("chat") is not None:
        differences += [
            EntryDifference(*change) for change in chat_template.list_changes(old_entry["chat"], new_entry["chat"])
        ]
    old_files, new_files = ({file["path"]: file for file in entry["files"]} for entry in (old_entry, new_entry))
    added_files = [new_files[path] for path in new_files if path not in old_files]
    removed_files = [old_files[path] for path in old_files if path not in new_files]
    common_files = [(old_files[path], new_files[path]) for path in new_files if path in old_files]
    changed_files = [
        files for files in common_files if any(files[0].get(key) != files[1].get(key) for key in CONTENT_KEYS)
    ]
    differences += [
        EntryDifference(f"+ {file['path']}", "absent", _format_size(file["size_bytes"])) for file in added_files
    ]
    differences += [
        EntryDifference(f"- {file['path']}", _format_size(file["size_bytes"]), "absent") for file in removed_files
    ]
    differences += [
        EntryDifference(f"~ {old_file['path']}", _format_content(old_file), _format_content(new_file))
        for old_file, new_file in changed_files
    ]
    download_bytes = sum(file["size_bytes"] for file in [*added_files, *(new_file for _, new_file in changed_files)])
    return (
        [*differences, EntryDifference("to load", "0 B", units.format_size(download_bytes))]
        if added_files or changed_files
        else differences
    )


def format_differences(differences: list[EntryDifference]) -> Iterator[str]:
    """Format differences as lines, up to MAX_SHOWN_ROWS of them."""
    yield from map(str, differences[:MAX_SHOWN_ROWS])
    if len(differences) > MAX_SHOWN_ROWS:
        yield f"... and {len(differences) - MAX_SHOWN_ROWS} more"


def _compare_values(field_name: str, before: str | None, after: str | None) -> list[EntryDifference]:
    return [] if before == after else [EntryDifference(field_name, before, after)]


def _format_content(file: EntryData) -> str:
    return f"{_format_size(file['size_bytes'])} {(file.get('sha256') or file.get('blob_id') or '')[:8]}"


def _format_day(created: str | None) -> str | None:
    return created[:10] if created else None


def _format_size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else units.format_size(size_bytes)
