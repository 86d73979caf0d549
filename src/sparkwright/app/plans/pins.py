"""The entries of spark.lock for a plan. A host looks up missing ones in the registry or on the hub; the laptop saves them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.engines.engine import DEFAULT_ENGINE
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.project import lockfile
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.models import Adapter, SecondModel
from sparkwright.protocol.events import find_recap
from sparkwright.protocol.plan import Plan, Task
from sparkwright.trust import image_name

#: stage of the tasks that look up entries
PIN_STAGE = "pin"


def lock_folder(project: Project, host: Host) -> Path:
    """Return the folder of a host's lock: the project or, for a sandbox with its simulated registry, the sandbox's folder."""
    return _sandbox_lock_folder() if host.connection == "sandbox" else project.root


def _sandbox_lock_folder() -> Path:
    from sparkwright.sandbox import control

    return control.default_folder()


def load_lock(project: Project, host: Host) -> lockfile.Lock:
    """Return a host's lock: the project's, or that of its sandbox."""
    return lockfile.load(lock_folder(project, host))


def load_sandbox_lock() -> lockfile.Lock:
    """Return the lock of the project's sandbox; empty if there is none."""
    return lockfile.load(_sandbox_lock_folder())


def lock_entries(lock: lockfile.Lock, recipe: Recipe) -> dict[str, Any]:
    """Return the lock's entries for a recipe; None for missing entries.

    Returns:
        `image`, `model` and, if the recipe has `models` or `adapters`, `models` with an entry per role.
    """
    model = recipe.file.model
    entries: dict[str, Any] = {
        "image": lock.image(recipe.image),
        "model": lock.model(model.id, model.revision, model.file_key),
    }
    if second_models := recipe.file.further_models:
        entries["models"] = {role: lock.model(*model_key_parts(second, role)) for role, second in second_models.items()}
    return entries


def model_key_parts(model: SecondModel, role: str) -> tuple[str, str, str]:
    """Return the id, revision and suffix of a second model's key in spark.lock."""
    return model.id, model.revision, model.lock_suffix(role)


def missing_pins(pins: Mapping[str, Any]) -> list[str]:
    """Return the names of the missing entries: `image`, `model`, and the roles of second models."""
    pins_by_name = {"image": pins.get("image"), "model": pins.get("model")}
    return [name for name, entry in {**pins_by_name, **(pins.get("models") or {})}.items() if not entry]


class Pins:
    """A lock to which missing entries are added, each looked up once for all hosts. Thread-safe.

    Args:
        save: write the lock to its file.
    """

    def __init__(self, folder: Path, *, save: bool) -> None:
        self._folder = folder
        self._save = save
        self._mutex = threading.Lock()
        self.lock = lockfile.load(folder)

    def complete(
        self, fleet: Fleet, member: Member, recipe: Recipe, run_id: str, *, required: bool = True
    ) -> dict[str, Any]:
        """Return the lock's entries for a recipe, as `lock_entries` does. The host looks up missing entries first.

        Raises Refused if `required` and the registry or the hub does not have the image or the model.
        """
        with self._mutex:
            tasks = self._build_lookup_tasks(recipe, member.host)
            tasks = [replace(task, ignore_errors=not required) for task in tasks]
            if tasks:
                answers = run_lock_tasks(fleet, member, tasks, run_id)
                self._add_entries(recipe, answers, fleet, member)
            return lock_entries(self.lock, recipe)

    def pin_image(self, fleet: Fleet, member: Member, ref: str, run_id: str) -> Mapping[str, Any]:
        """Return the lock's entry for an image. If it is missing, the host looks it up first."""
        with self._mutex:
            entry = self.lock.image(ref)
            if entry is None:
                args = {"ref": ref, "mirror": member.host.registry_mirror or ""}
                entry = run_lock_tasks(fleet, member, [_image_task(ref, args)], run_id)["image"]
                answer = entry
                self._update(lambda lock: lock.with_image(ref, answer))
                if self._save:
                    _report_pin(fleet, member, f"{ref} pinned to {entry['digest'][:19]}")
            return entry

    def _build_lookup_tasks(self, recipe: Recipe, host: Host) -> list[Task]:
        pins = lock_entries(self.lock, recipe)
        tasks = [image_task(recipe, host)] if pins["image"] is None else []
        tasks += [model_task(recipe, allow_local_copy=True)] if pins["model"] is None else []
        roles = [role for role, entry in (pins.get("models") or {}).items() if entry is None]
        return tasks + [model_task(recipe, role=role, allow_local_copy=True) for role in roles]

    def _add_entries(self, recipe: Recipe, answers: dict[str, dict[str, Any]], fleet: Fleet, member: Member) -> None:
        self._update(lambda lock: _with_answers(lock, recipe, answers))
        if self._save:
            for text in _describe_pins(recipe, answers):
                _report_pin(fleet, member, text)

    def _update(self, add_entries: Callable[[lockfile.Lock], lockfile.Lock]) -> None:
        """Add entries to the lock, and to its file, which another command may have changed since it was read."""
        self.lock = add_entries(self.lock)
        if self._save:
            save_lock(add_entries(lockfile.load(self._folder)), self._folder)


def _with_answers(lock: lockfile.Lock, recipe: Recipe, answers: Mapping[str, Mapping[str, Any]]) -> lockfile.Lock:
    if "image" in answers:
        lock = lock.with_image(recipe.image, answers["image"])
    if "model" in answers:
        model = recipe.file.model
        lock = lock.with_model(model.id, model.revision, answers["model"], model.file_key)
    for role, second_model in recipe.file.further_models.items():
        if role in answers:
            id_, revision, suffix = model_key_parts(second_model, role)
            lock = lock.with_model(id_, revision, answers[role], suffix)
    return lock


def save_engine(folder: Path, fleet: Fleet, member: Member, image: str, digest: str) -> None:
    """Save the engine's version and options, which a task read from an image, in the image's entry.

    The lock is read again, because it may have been changed during the run. A note reports an error, after which the run is still
    a success.

    Args:
        image: REPOSITORY:TAG.
        digest: digest of the image in the plan; an entry with another one is not changed.
    """
    lock_name = _lock_name(member)
    try:
        lock = lockfile.load(folder)
        entry = lock.image(image)
        if entry is None or entry["digest"] != digest:
            return
        options = member.engine_options or entry.get("options")
        reported_facts = {"engine_version": member.engine_version, "options": options}
        if reported_facts.items() <= entry.items():
            return
        save_lock(lock.with_image(image, {**entry, **reported_facts}), folder)
    except SparkwrightError as error:
        fleet.add_note(member, f"{lock_name} has no engine version for {image}, because of an error: {error}")
    else:
        fleet.add_note(member, f"{lock_name}: {image} contains engine version {member.engine_version}.", detail=True)


def save_lock(lock: lockfile.Lock, folder: Path) -> None:
    """Write spark.lock. Raises Failed if the file can't be written."""
    try:
        lock.save(folder)
    except OSError as error:
        raise Failed(f"spark.lock can't be written: {error}.") from None


def _report_pin(fleet: Fleet, member: Member, message: str) -> None:
    is_sandbox = member.host.connection == "sandbox"
    hint = "" if is_sandbox else "; commit it, so that other hosts get the same"
    fleet.add_note(member, f"{_lock_name(member)}: {message}{hint}.", detail=is_sandbox)


def _lock_name(member: Member) -> str:
    return "the sandbox's own lock" if member.host.connection == "sandbox" else "spark.lock"


def _describe_pins(recipe: Recipe, answers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if "image" in answers:
        yield f"{recipe.image} pinned to {answers['image']['digest'][:19]}"
    for name, model in {"model": recipe.file.model, **recipe.file.further_models}.items():
        if entry := answers.get(name):
            yield f"{model.id} pinned to commit {entry['commit'][:12]}, {len(entry['files'])} files"


def image_task(recipe: Recipe, host: Host, *, pinned_digest: str = "", follow_tag: bool = True) -> Task:
    """Return the task that looks up a recipe's image in the registry.

    Args:
        pinned_digest: the digest in the lock; empty if there is none.
        follow_tag: look up the tag instead of the pinned digest.
    """
    ref = recipe.image if follow_tag else image_name.with_digest(recipe.image, pinned_digest)
    args = {"ref": ref, "mirror": host.registry_mirror or "", "pinned": pinned_digest if follow_tag else ""}
    return _image_task(recipe.image, {**args, **_engine_argument(recipe)})


def _image_task(image: str, args: dict[str, Any]) -> Task:
    name = f"Pin {image}: look up its digest in the registry"
    return Task(id="image", name=name, module="lock_image", args=args, stage=PIN_STAGE)


def model_task(recipe: Recipe, *, role: str | None = None, allow_local_copy: bool = False) -> Task:
    """Return the task that looks up a model of a recipe on the hub.

    Args:
        role: role of a second model; None for the recipe's first model.
        allow_local_copy: accept a complete copy on the host if the hub is down.
    """
    args: dict[str, Any]
    if role is None:
        model = recipe.file.model
        title, args = model.id, model.model_dump(include={"id", "revision", "allow", "ignore"})
        args |= model.model_dump(include={"file", "mmproj", "draft"}) if model.file_key else {}
    else:
        second_model = recipe.file.further_models[role]
        title = f"{second_model.id} ({role})"
        args = {**second_model.model_dump(include={"id", "revision"}), **second_model.patterns(role)}
        args |= {"file": second_model.file} if second_model.file else {}
        args |= {"adapter": True} if isinstance(second_model, Adapter) else {}
    args |= {"or_here": allow_local_copy, **_engine_argument(recipe)}
    name = f"Pin {title}: look up its commit and files on the hub"
    return Task(id=role or "model", name=name, module="lock_model", args=args, stage=PIN_STAGE)


def _engine_argument(recipe: Recipe) -> dict[str, str]:
    return {} if recipe.engine.name == DEFAULT_ENGINE else {"engine": recipe.engine.name}


def run_lock_tasks(fleet: Fleet, member: Member, tasks: list[Task], run_id: str) -> dict[str, dict[str, Any]]:
    """Run lookup tasks on a host, and return the entries by task id, without those of failed tasks with `ignore_errors`.

    Raises Refused with the host's message.
    """
    plan = Plan(run_id=f"{run_id}-lock", host=member.host.name, play="Lock", steps=tuple(tasks), exclusive=False)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, include_recap=False)
    recap = find_recap(events)
    if recap is None or recap["exit"] != 0:
        raise Refused(recap["msg"] if recap else "the host gave no answer.", where=member.host.name)
    from sparkwright.app.queries import host_requests

    finished_events = {
        event["task"]: event
        for event in events
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed")
    }
    answers = {}
    for task in tasks:
        if task.id not in finished_events and task.ignore_errors:
            continue
        if task.id not in finished_events:
            raise Refused(f"the host did not report a result for '{task.name}'.", where=member.host.name)
        data = finished_events[task.id]["data"]
        answers[task.id] = host_requests.validate_answer(task.module, data, host=member.host.name)
    return answers
