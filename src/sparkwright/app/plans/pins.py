"""The entries of spark.lock that a plan needs.

A missing entry is looked up by the host in the registry or on the hub, and written by the laptop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.engines.engine import DEFAULT_ENGINE
from sparkwright.errors import Failed, Refused
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

#: the stage of a run in which the lock is filled
PIN_STAGE = "pin"


def lock_folder(project: Project, host: Host) -> Path:
    """Return the folder of the lock that counts for a host.

    A sandbox has its own, because answers from its registry must never get into the project's lock.
    """
    if host.connection != "sandbox":
        return project.root
    from sparkwright.sandbox import control

    return control.default_folder()


def load_lock(project: Project, host: Host) -> lockfile.Lock:
    """Return the lock that counts for a host."""
    return lockfile.load(lock_folder(project, host))


def load_sandbox_lock() -> lockfile.Lock:
    """Return the lock of the project's sandbox; empty if there is none."""
    from sparkwright.sandbox import control

    return lockfile.load(control.default_folder())


def lock_entries(lock: lockfile.Lock, recipe: Recipe) -> dict[str, Any]:
    """Return the lock's entries for a recipe: {"image": ..., "model": ...}, with None for a missing one.

    If the recipe has `models` or `adapters`, the result also holds {"models": {role: ...}}.
    """
    model, further_models = recipe.file.model, recipe.file.further_models
    entries_by_kind = {"image": lock.image(recipe.image), "model": lock.model(model.id, model.revision, model.file_key)}
    if not further_models:
        return entries_by_kind
    return {
        **entries_by_kind,
        "models": {
            role: lock.model(*model_key_parts(second_model, role)) for role, second_model in further_models.items()
        },
    }


def model_key_parts(model: SecondModel, role: str) -> tuple[str, str, str]:
    """Return the parts of a second model's key in spark.lock."""
    return model.id, model.revision, model.lock_suffix(role)


def missing_pins(pins: Mapping[str, Any]) -> list[str]:
    """Return the names of the missing entries: image, model, and second models by their roles."""
    pins_by_name = {"image": pins.get("image"), "model": pins.get("model")}
    return [name for name, entry in {**pins_by_name, **(pins.get("models") or {})}.items() if not entry]


class Pins:
    """A lock whose missing entries are completed once for all hosts.

    Args:
        save: False in check mode, where nothing is written.
    """

    def __init__(self, folder: Path, *, save: bool) -> None:
        self._folder = folder
        self._save = save
        self._mutex = threading.Lock()
        self.lock = lockfile.load(folder)

    def complete(self, fleet: Fleet, member: Member, recipe: Recipe, run_id: str) -> dict[str, Any]:
        """Return the lock's entries for a recipe: {"image": ..., "model": ...}. Missing ones are requested through the host.

        Raises Refused if the registry or the hub does not know the image or the model.
        """
        with self._mutex:
            missing = self._missing_tasks(recipe, member.host)
            if missing:
                answers = run_lock_tasks(fleet, member, missing, run_id)
                self._add_entries(recipe, answers, fleet, member)
            return lock_entries(self.lock, recipe)

    def image(self, fleet: Fleet, member: Member, ref: str, run_id: str) -> Mapping[str, Any]:
        """Return the lock's entry for an image that no recipe names. A missing one is requested through the host."""
        with self._mutex:
            entry = self.lock.image(ref)
            if entry is None:
                args = {"ref": ref, "mirror": member.host.registry_mirror or ""}
                name = f"Pin {ref}: ask the registry for its digest"
                task = Task(id="image", name=name, module="lock_image", args=args, stage=PIN_STAGE)
                entry = run_lock_tasks(fleet, member, [task], run_id)["image"]
                self.lock = self.lock.with_image(ref, entry)
                self._write()
                if self._save:
                    _report_pin(fleet, member, f"{ref} pinned to {entry['digest'][:19]}")
            return entry

    def save_engine(self, fleet: Fleet, member: Member, recipe: Recipe) -> None:
        """Save the version and options that the engine of a recipe's image reported to a member."""
        image = recipe.image
        with self._mutex:
            entry = self.lock.image(image)
            if entry is None:
                return
            reported = {
                "engine_version": member.engine_version,
                "options": member.engine_options or entry.get("options"),
            }
            if reported.items() <= entry.items():
                return
            self.lock = self.lock.with_image(image, {**entry, **reported})
            self._write()
            text = f"{_lock_name(member)}: {image} holds {recipe.engine.title} {member.engine_version}."
            fleet.add_note(member, text, detail=True)

    def _missing_tasks(self, recipe: Recipe, host: Host) -> list[Task]:
        pins = lock_entries(self.lock, recipe)
        tasks = [image_task(recipe, host)] if pins["image"] is None else []
        tasks += [model_task(recipe, allow_local_copy=True)] if pins["model"] is None else []
        further_models = pins.get("models") or {}
        return tasks + [
            model_task(recipe, role=role, allow_local_copy=True)
            for role, entry in further_models.items()
            if entry is None
        ]

    def _add_entries(self, recipe: Recipe, answers: dict[str, dict[str, Any]], fleet: Fleet, member: Member) -> None:
        if "image" in answers:
            self.lock = self.lock.with_image(recipe.image, answers["image"])
        if "model" in answers:
            model = recipe.file.model
            self.lock = self.lock.with_model(model.id, model.revision, answers["model"], model.file_key)
        for role, second in recipe.file.further_models.items():
            if role in answers:
                id_, revision, file = model_key_parts(second, role)
                self.lock = self.lock.with_model(id_, revision, answers[role], file)
        if self._save:
            self._write()
            for text in _describe_pins(recipe, answers):
                _report_pin(fleet, member, text)

    def _write(self) -> None:
        if self._save:
            save_lock(self.lock, self._folder)


def save_lock(lock: lockfile.Lock, folder: Path) -> None:
    """Write spark.lock. Raises Failed."""
    try:
        lock.save(folder)
    except OSError as error:
        raise Failed(f"spark.lock can't be written: {error}.") from None


def _report_pin(fleet: Fleet, member: Member, pinned: str) -> None:
    """Report a new pin, which applies to every other host too; a sandbox's pin applies only there."""
    simulated = member.host.connection == "sandbox"
    suffix = "" if simulated else "; commit it, so that the next host gets the same"
    fleet.add_note(member, f"{_lock_name(member)}: {pinned}{suffix}.", detail=simulated)


def _lock_name(member: Member) -> str:
    return "the sandbox's own lock" if member.host.connection == "sandbox" else "spark.lock"


def _describe_pins(recipe: Recipe, answers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each new entry."""
    if "image" in answers:
        yield f"{recipe.image} pinned to {answers['image']['digest'][:19]}"
    ids: dict[str, str] = {
        "model": recipe.file.model.id,
        **{role: model.id for role, model in recipe.file.further_models.items()},
    }
    for name, id_ in ids.items():
        if entry := answers.get(name):
            yield f"{id_} pinned to commit {entry['commit'][:12]}, {len(entry['files'])} files"


def image_task(recipe: Recipe, host: Host, *, pinned: str = "", follow: bool = True) -> Task:
    """Return the task that asks the registry about a recipe's image.

    Args:
        pinned: the digest in the lock.
        follow: False to look up that digest instead of the tag.
    """
    ref = recipe.image if follow else image_name.with_digest(recipe.image, pinned)
    args = {
        "ref": ref,
        "mirror": host.registry_mirror or "",
        "pinned": pinned if follow else "",
        **_engine_argument(recipe),
    }
    name = f"Pin {recipe.image}: ask the registry for its digest"
    return Task(id="image", name=name, module="lock_image", args=args, stage=PIN_STAGE)


def model_task(recipe: Recipe, *, role: str | None = None, allow_local_copy: bool = False) -> Task:
    """Return the task that asks the hub about a recipe's model.

    Args:
        role: role of a second model; None for the recipe's own model.
        allow_local_copy: accept a complete copy on the host if the hub is down.
    """
    if role is not None:
        return _further_model_task(recipe, role, allow_local_copy)
    model = recipe.file.model
    args = {
        **model.model_dump(include={"id", "revision", "allow", "ignore"}),
        "or_here": allow_local_copy,
        **_engine_argument(recipe),
    }
    args |= model.model_dump(include={"file", "mmproj", "draft"}) if model.file_key else {}
    name = f"Pin {model.id}: ask the hub for its commit and files"
    return Task(id="model", name=name, module="lock_model", args=args, stage=PIN_STAGE)


def _further_model_task(recipe: Recipe, role: str, allow_local_copy: bool) -> Task:
    model = recipe.file.further_models[role]
    args = {**model.model_dump(include={"id", "revision"}), **model.patterns(role), "or_here": allow_local_copy}
    args |= {**_engine_argument(recipe), **({"file": model.file} if model.file else {})}
    args |= {"adapter": True} if isinstance(model, Adapter) else {}
    name = f"Pin {model.id} ({role}): ask the hub for its commit and files"
    return Task(id=role, name=name, module="lock_model", args=args, stage=PIN_STAGE)


def _engine_argument(recipe: Recipe) -> dict[str, str]:
    return {} if recipe.engine.name == DEFAULT_ENGINE else {"engine": recipe.engine.name}


def run_lock_tasks(fleet: Fleet, member: Member, tasks: list[Task], run_id: str) -> dict[str, dict[str, Any]]:
    """Run modules on a host and return their answers by task id. Raises Refused with the host's message."""
    plan = Plan(run_id=f"{run_id}-lock", host=member.host.name, play="Lock", steps=tuple(tasks), exclusive=False)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    recap = find_recap(events)
    if recap is None or recap["exit"] != 0:
        raise Refused(
            recap["msg"] if recap else "the host gave no answer to the requests for the lock.", where=member.host.name
        )
    from sparkwright.app.queries import host_requests

    finished = {
        event["task"]: event
        for event in events
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed")
    }
    for task in tasks:
        if task.id not in finished:
            raise Refused(f"the host gave no answer to '{task.name}'.", where=member.host.name)
    return {
        task.id: host_requests.validate_answer(task.module, finished[task.id]["data"], host=member.host.name)
        for task in tasks
    }
