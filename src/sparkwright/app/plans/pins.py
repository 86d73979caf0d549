"""The entries of spark.lock that a plan needs.

A missing entry is looked up by the host in the registry or on the hub, and written by the laptop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.engines.engine import USUAL
from sparkwright.errors import Failed, Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.project import lockfile
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.models import Adapter, SecondModel
from sparkwright.protocol.events import last_recap
from sparkwright.protocol.plan import Plan, Task
from sparkwright.trust import image_name

#: the stage of a run in which the lock is filled
PIN = "pin"


def lock_folder(project: Project, host: Host) -> Path:
    """Return the folder of the lock that counts for a host.

    A sandbox has its own, because answers from its registry must never get into the project's lock.
    """
    if host.connection != "sandbox":
        return project.root
    from sparkwright.sandbox import control

    return control.default_folder()


def lock_of(project: Project, host: Host) -> lockfile.Lock:
    """Return the lock that counts for a host."""
    return lockfile.load(lock_folder(project, host))


def simulated() -> lockfile.Lock:
    """Return the lock of the project's sandbox; empty if there is none."""
    from sparkwright.sandbox import control

    return lockfile.load(control.default_folder())


def entries(lock: lockfile.Lock, wanted: Recipe) -> dict[str, Any]:
    """Return the lock's entries for a recipe: {"image": ..., "model": ...}, with None for a missing one.

    If the recipe has `models` or `adapters`, the result also holds {"models": {role: ...}}.
    """
    model, second = wanted.file.model, wanted.file.further
    found = {"image": lock.image(wanted.image), "model": lock.model(model.id, model.revision, model.chosen)}
    if not second:
        return found
    return {**found, "models": {role: lock.model(*keyed(second_model, role)) for role, second_model in second.items()}}


def keyed(model: SecondModel, role: str) -> tuple[str, str, str]:
    """Return the parts of a second model's key in spark.lock."""
    return model.id, model.revision, model.chosen(role)


def not_pinned(known: Mapping[str, Any]) -> list[str]:
    """Return the names of the missing entries: image, model, and second models by their roles."""
    rows = {"image": known.get("image"), "model": known.get("model")}
    return [name for name, entry in {**rows, **(known.get("models") or {})}.items() if not entry]


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

    def complete(self, fleet: Fleet, member: Member, wanted: Recipe, run_id: str) -> dict[str, Any]:
        """Return the lock's entries for a recipe: {"image": ..., "model": ...}. Missing ones are requested through the host.

        Raises Refused if the registry or the hub does not know the image or the model.
        """
        with self._mutex:
            missing = self._missing(wanted, member.host)
            if missing:
                found = ask(fleet, member, missing, run_id)
                self._keep(wanted, found, fleet, member)
            return entries(self.lock, wanted)

    def image(self, fleet: Fleet, member: Member, ref: str, run_id: str) -> Mapping[str, Any]:
        """Return the lock's entry for an image that no recipe names. A missing one is requested through the host."""
        with self._mutex:
            known = self.lock.image(ref)
            if known is None:
                args = {"ref": ref, "mirror": member.host.registry_mirror or ""}
                name = f"Pin {ref}: ask the registry for its digest"
                task = Task(id="image", name=name, module="lock_image", args=args, stage=PIN)
                known = ask(fleet, member, [task], run_id)["image"]
                self.lock = self.lock.with_image(ref, known)
                self._write()
                if self._save:
                    _tell(fleet, member, f"{ref} pinned to {known['digest'][:19]}")
            return known

    def learn_engine(self, fleet: Fleet, member: Member, wanted: Recipe) -> None:
        """Save the version and options that the engine of a recipe's image reported to a member."""
        image = wanted.image
        with self._mutex:
            entry = self.lock.image(image)
            if entry is None:
                return
            learnt = {"engine_version": member.engine_version, "options": member.engine_options or entry.get("options")}
            if learnt.items() <= entry.items():
                return
            self.lock = self.lock.with_image(image, {**entry, **learnt})
            self._write()
            text = f"{_lock_name(member)}: {image} holds {wanted.engine.title} {member.engine_version}."
            fleet.tell(member, text, detail=True)

    def _missing(self, wanted: Recipe, host: Host) -> list[Task]:
        known = entries(self.lock, wanted)
        tasks = [image_task(wanted, host)] if known["image"] is None else []
        tasks += [model_task(wanted, or_here=True)] if known["model"] is None else []
        second = known.get("models") or {}
        return tasks + [model_task(wanted, role=role, or_here=True) for role, entry in second.items() if entry is None]

    def _keep(self, wanted: Recipe, found: dict[str, dict[str, Any]], fleet: Fleet, member: Member) -> None:
        if "image" in found:
            self.lock = self.lock.with_image(wanted.image, found["image"])
        if "model" in found:
            model = wanted.file.model
            self.lock = self.lock.with_model(model.id, model.revision, found["model"], model.chosen)
        for role, second in wanted.file.further.items():
            if role in found:
                id_, revision, file = keyed(second, role)
                self.lock = self.lock.with_model(id_, revision, found[role], file)
        if self._save:
            self._write()
            for text in _reported(wanted, found):
                _tell(fleet, member, text)

    def _write(self) -> None:
        if self._save:
            save(self.lock, self._folder)


def save(lock: lockfile.Lock, folder: Path) -> None:
    """Write spark.lock. Raises Failed."""
    try:
        lock.save(folder)
    except OSError as error:
        raise Failed(f"spark.lock can't be written: {error}.") from None


def _tell(fleet: Fleet, member: Member, pinned: str) -> None:
    """Report a new pin, which applies to every other host too; a sandbox's pin applies only there."""
    simulated = member.host.connection == "sandbox"
    after = "" if simulated else "; commit it, so that the next host gets the same"
    fleet.tell(member, f"{_lock_name(member)}: {pinned}{after}.", detail=simulated)


def _lock_name(member: Member) -> str:
    return "the sandbox's own lock" if member.host.connection == "sandbox" else "spark.lock"


def _reported(wanted: Recipe, found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each new entry."""
    if "image" in found:
        yield f"{wanted.image} pinned to {found['image']['digest'][:19]}"
    ids: dict[str, str] = {
        "model": wanted.file.model.id,
        **{role: model.id for role, model in wanted.file.further.items()},
    }
    for name, id_ in ids.items():
        if entry := found.get(name):
            yield f"{id_} pinned to commit {entry['commit'][:12]}, {len(entry['files'])} files"


def image_task(wanted: Recipe, host: Host, *, pinned: str = "", follow: bool = True) -> Task:
    """Return the task that asks the registry about a recipe's image.

    Args:
        pinned: the digest in the lock.
        follow: False to look up that digest instead of the tag.
    """
    ref = wanted.image if follow else image_name.pinned(wanted.image, pinned)
    args = {"ref": ref, "mirror": host.registry_mirror or "", "pinned": pinned if follow else "", **_engine(wanted)}
    name = f"Pin {wanted.image}: ask the registry for its digest"
    return Task(id="image", name=name, module="lock_image", args=args, stage=PIN)


def model_task(wanted: Recipe, *, role: str | None = None, or_here: bool = False) -> Task:
    """Return the task that asks the hub about a recipe's model.

    Args:
        role: role of a second model; None for the recipe's own model.
        or_here: accept a complete copy on the host if the hub is down.
    """
    if role is not None:
        return _second_task(wanted, role, or_here)
    model = wanted.file.model
    args = {**model.model_dump(include={"id", "revision", "allow", "ignore"}), "or_here": or_here, **_engine(wanted)}
    args |= model.model_dump(include={"file", "mmproj", "draft"}) if model.chosen else {}
    name = f"Pin {model.id}: ask the hub for its commit and files"
    return Task(id="model", name=name, module="lock_model", args=args, stage=PIN)


def _second_task(wanted: Recipe, role: str, or_here: bool) -> Task:
    model = wanted.file.further[role]
    args = {**model.model_dump(include={"id", "revision"}), **model.patterns(role), "or_here": or_here}
    args |= {**_engine(wanted), **({"file": model.file} if model.file else {})}
    args |= {"adapter": True} if isinstance(model, Adapter) else {}
    name = f"Pin {model.id} ({role}): ask the hub for its commit and files"
    return Task(id=role, name=name, module="lock_model", args=args, stage=PIN)


def _engine(wanted: Recipe) -> dict[str, str]:
    return {} if wanted.engine.name == USUAL else {"engine": wanted.engine.name}


def ask(fleet: Fleet, member: Member, tasks: list[Task], run_id: str) -> dict[str, dict[str, Any]]:
    """Run modules on a host and return their answers by task id. Raises Refused with the host's message."""
    plan = Plan(run_id=f"{run_id}-lock", host=member.host.name, play="Lock", steps=tuple(tasks), exclusive=False)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    ended = last_recap(events)
    if ended is None or ended["exit"] != 0:
        raise Refused(
            ended["msg"] if ended else "the host gave no answer to the requests for the lock.", where=member.host.name
        )
    from sparkwright.app.questions import host_requests

    done = {
        event["task"]: event
        for event in events
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed")
    }
    for task in tasks:
        if task.id not in done:
            raise Refused(f"the host gave no answer to '{task.name}'.", where=member.host.name)
    return {task.id: host_requests.checked(task.module, done[task.id]["data"], host=member.host.name) for task in tasks}
