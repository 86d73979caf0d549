"""Module that lists and removes everything that sparkwright put on a host."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkwright.engines.compile_caches import HOST_FOLDER as CACHES_FOLDER
from sparkwright.errors import SparkwrightError
from sparkwright.health import schedule
from sparkwright.host.containers import (
    cache_removal,
    compile_caches,
    container_files,
    containers,
    lifecycle,
    ownership,
)
from sparkwright.host.models import model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import own_folders
from sparkwright.host.runs import journal
from sparkwright.modules.image import image_transfer
from sparkwright.modules.storage import PruneImages, RemoveModel, remove_image
from sparkwright.modules.system.health_timer import CRONTAB, HealthTimer
from sparkwright.protocol.container import LAB_LABEL
from sparkwright.protocol.result import Change, arg

CACHE_KIND = "compile cache"


@dataclass(frozen=True, slots=True)
class Item:
    """An object that sparkwright put on the host."""

    kind: str
    name: str
    #: None if unknown
    size_bytes: int | None = 0
    #: why it is kept; empty if it is removed
    kept: str = ""
    #: set for images only
    image_id: str = ""


@dataclass(frozen=True, slots=True)
class CleanHostState:
    """The objects that sparkwright put on the host."""

    items: tuple[Item, ...]
    #: id of another run in progress; empty if there is none
    other_run_id: str = ""


class CleanHost(StateModule["CleanHost.Args", CleanHostState]):
    """List everything that sparkwright put on a host, with sizes, and remove the objects outside its own folders.

    Always removed: previous containers kept for a rollback, interim servers, replacements that were never started, containers
    of the lab, compile caches, files in model folders that a rollback or a download left there, and the lines of image
    transfers in ~/.ssh/authorized_keys. Removed on request: servers, the gateway, models and images. Only listed: the health
    timer (`health_timer` with `state: absent` removes it) and sparkwright's own folders, which contain the runtime of this
    module.

    Containers are recognized by their labels or recorded id, never by name. A model or image that a remaining container uses
    is kept. If Docker does not answer, containers, models and images are kept.

    Returns: items (kind, name, size_bytes (null if unknown), kept: the reason), busy (id of another run in progress).
    """

    @dataclass(frozen=True)
    class Args:
        repositories: list[str] = arg("repositories of the recipes' images", default_factory=list)
        server: bool = arg("remove the containers of the servers and of the gateway too", default=False)
        models: bool = arg("remove the models' files too", default=False)
        images: bool = arg("remove the images too", default=False)

    def read(self, args: Args, context: Context) -> CleanHostState:
        items = [*_list_containers(args, context)]
        removed_names = {item.name for item in items if item.kind == "container" and not item.kept}
        items += _list_caches(context, removed_names)
        items += _list_images(args, context, removed_names)
        items += _list_models(args, context, removed_names)
        items += _list_kept_model_files(context)
        if key_lines := image_transfer.count_key_lines(context):
            items.append(Item("ssh key", f"~/.ssh/authorized_keys: lines of image transfers: {key_lines}"))
        items += _list_timers(context)
        kept_models = {item.name for item in items if item.kind == "model" and item.kept}
        items += _list_folders(context, removed_names, kept_models)
        other_runs = (
            run.name for run in context.state.runs() if run.name != context.run_id and journal.is_running(run)
        )
        return CleanHostState(tuple(items), next(other_runs, ""))

    def differences(self, args: Args, observed: CleanHostState) -> list[Change]:
        return [
            Change(item.kind, item.name, None) for item in observed.items if not item.kept and item.kind in _REMOVERS
        ]

    def describe(self, args: Args, observed: CleanHostState) -> dict[str, Any]:
        items = [{name: value for name, value in asdict(item).items() if name != "image_id"} for item in observed.items]
        return {"items": items, "busy": observed.other_run_id}

    def act(self, args: Args, observed: CleanHostState, changes: list[Change], context: Context) -> dict[str, Any]:
        # images are removed by id, because a tag may have moved since
        image_ids = {item.name: item.image_id for item in observed.items if item.image_id}
        for change in changes:
            context.note(f"removing {change.field} {change.before}")
            _REMOVERS[change.field](image_ids.get(change.before, change.before), context)
        return {}


# -- listing -----------------------------------------------------------------------------------------------------------


def _list_containers(args: CleanHost.Args, context: Context) -> Iterator[Item]:
    try:
        rows = context.docker().api.containers(all=True, size=True)
    except SparkwrightError as error:
        yield Item("container", "containers and images", None, f"unknown: {error.message}")
        return
    for row in sorted(rows, key=lambda row: row["Names"][0]):
        container = containers.inspect(context.docker(), row["Id"])
        if container is None or (identity := ownership.identify(context, container)) is None:
            continue
        is_serving = (
            identity.role in (ownership.SERVER, ownership.GATEWAY)
            and LAB_LABEL not in (row.get("Labels") or {})
            and not ownership.is_kept_previous(context, container)
            and not ownership.is_unstarted_replacement(context, container)
        )
        kept_reason = "--server removes it" if is_serving and not args.server else ""
        yield Item("container", containers.name_of(container), row.get("SizeRw"), kept_reason)


def _list_caches(context: Context, removed_names: set[str]) -> Iterator[Item]:
    """Yield the compile caches, in the current folder and the folder of earlier versions, and the trash."""
    container_by_key = compile_caches.keys_possibly_in_use(context)
    for key in compile_caches.list_keys(context):
        folder, container = compile_caches.folder(context, key), container_by_key.get(key, "")
        reason = f"used by {container}" if container and container not in removed_names else ""
        yield Item(CACHE_KIND, str(folder), own_folders.find_disk_bytes(folder), reason)
    with contextlib.suppress(SparkwrightError):
        for path, container in compile_caches.old_folders(context).items():
            reason = f"used by {container}" if container not in ("", *removed_names) else ""
            yield Item(CACHE_KIND, str(path), own_folders.find_disk_bytes(path), reason)
    trash = context.machine.home / container_files.TRASH_FOLDER
    if trash.is_dir():
        yield Item(CACHE_KIND, str(trash), own_folders.find_disk_bytes(trash))


def _list_images(args: CleanHost.Args, context: Context, removed_names: set[str]) -> Iterator[Item]:
    if not args.repositories:
        return
    try:
        images = PruneImages().read(PruneImages.Args(repositories=args.repositories), context)
        rows = context.docker().api.containers(all=True)
    except SparkwrightError:
        return
    container_by_image = {
        row["ImageID"]: name for row in rows if (name := containers.name_of(row)) not in removed_names
    }
    for image in images:
        reason = (
            f"used by {container_by_image[image.id]}"
            if image.id in container_by_image
            else ""
            if args.images
            else "--images removes it"
        )
        yield Item("image", image.names[0] if image.names else image.id, int(image.frees_bytes), reason, image.id)


def _list_models(args: CleanHost.Args, context: Context, removed_names: set[str]) -> Iterator[Item]:
    manifests = model_folders.removable_manifests(context.state)
    mounts: list[tuple[str, Path]] | None = []
    try:
        mounts = list(own_folders.iter_mounts(context, exclude=removed_names)) if manifests else []
    except SparkwrightError:
        mounts = None
    for manifest in manifests:
        container_names = sorted(
            {name for name, source in mounts or () if model_folders.overlaps(manifest.folder, source)}
        )
        reason = (
            own_folders.UNKNOWN_USE
            if mounts is None
            else f"used by {', '.join(container_names)}"
            if container_names
            else ""
        )
        size_bytes = sum(own_folders.disk_bytes(path) for path in model_folders.own_files(manifest))
        yield Item("model", str(manifest.folder), size_bytes, reason if args.models else "--models removes it")


def _list_kept_model_files(context: Context) -> Iterator[Item]:
    for manifest in Manifest.load_all(context.state):
        for path in (manifest.folder / model_folders.KEPT_FOLDER, manifest.folder / model_folders.STAGING_FOLDER):
            if path.is_dir() and not path.is_symlink():
                yield Item("model files", str(path), own_folders.find_disk_bytes(path))


def _list_timers(context: Context) -> Iterator[Item]:
    if context.machine.sandbox:
        return
    timer = HealthTimer().read(HealthTimer.Args(state="absent"), context)
    files = [
        path
        for scope in ("user", "system")
        for path in schedule.Scheduler.from_scope(scope, context).files
        if path.exists()
    ]
    files += [path for path in timer.check_files if not path.is_relative_to(context.state.path)]
    yield from (Item("timer", str(path), own_folders.disk_bytes(path)) for path in files)
    if schedule.CRON_MARK in timer.current_files[CRONTAB]:
        yield Item("timer", "crontab: the line of the health check")
    if timer.previous_settings.lingers:
        yield Item("timer", f"linger of {timer.scheduler.user}, enabled for the health timer")


def _list_folders(context: Context, removed_names: set[str], kept_models: set[str]) -> Iterator[Item]:
    """Yield sparkwright's own folders, and separately the kept files in them: mounted ones, and manifests of kept models."""
    share_folder, state_folder = own_folders.share_and_state(context.machine.home)
    cache_folders = (CACHES_FOLDER, compile_caches.OLD_FOLDER, container_files.TRASH_FOLDER)
    caches = [context.machine.home / folder for folder in cache_folders]
    for path in sorted(share_folder.iterdir()) if share_folder.is_dir() else ():
        if path not in caches:
            yield Item("folder", str(path), own_folders.find_disk_bytes(path))
    used_files = own_folders.files_in_use(context, exclude=removed_names)
    size_bytes = own_folders.find_disk_bytes(state_folder)
    kept_items = [
        Item("server key", str(path), own_folders.disk_bytes(path), reason) for path, reason in used_files.items()
    ]
    kept_items += [
        Item("manifest", str(manifest.file), own_folders.disk_bytes(manifest.file), f"lists {manifest.folder}")
        for manifest in Manifest.load_all(context.state)
        if str(manifest.folder) in kept_models
    ]
    kept_bytes = sum(item.size_bytes or 0 for item in kept_items)
    kept_paths = {Path(item.name) for item in kept_items}
    if any(not path.is_dir() and kept_paths.isdisjoint((path, *path.parents)) for path in state_folder.rglob("*")):
        yield Item("folder", str(state_folder), None if size_bytes is None else size_bytes - kept_bytes)
    yield from kept_items


# -- removal -----------------------------------------------------------------------------------------------------------


def _remove_container(name: str, context: Context) -> None:
    if container := containers.inspect(context.docker(), name):
        lifecycle.remove(context, container, 60)


def _remove_model(name: str, context: Context) -> None:
    RemoveModel().run(RemoveModel.Args(dir=name), context)
    own_folders.remove_empty_folders(Path(name).parent, context.machine.home)


def _remove_files(name: str, context: Context) -> None:
    path = Path(name)
    if path.name == model_folders.KEPT_FOLDER:
        model_folders.forget_kept_with_manifest(context, path.parent)
    else:
        shutil.rmtree(path, ignore_errors=True)
    own_folders.remove_empty_folders(path.parent, context.machine.home)


def _remove_cache(name: str, context: Context) -> None:
    path = Path(name)
    if path.parent == context.machine.home / CACHES_FOLDER:
        cache_removal.discard(context, path.name)
    elif path != context.machine.home / container_files.TRASH_FOLDER:
        container_files.discard(context, path)
    container_files.empty_trash(context)
    own_folders.remove_empty_folders(path.parent, context.machine.home)


#: other kinds are removed elsewhere: timers by `health_timer`, and the folders last, with the runtime
_REMOVERS: dict[str, Callable[[str, Context], None]] = {
    "container": _remove_container,
    CACHE_KIND: _remove_cache,
    "image": lambda image_id, context: remove_image(context.docker().api, image_id),
    "model": _remove_model,
    "model files": _remove_files,
    "ssh key": lambda name, context: image_transfer.remove_key_lines(context),
}
