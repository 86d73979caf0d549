"""Modules that resolve the entries of spark.lock: images at their registry, models at their hub."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.engines.engine import EngineName, get_engine
from sparkwright.engines.model import adapter
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host.images import image_names, registry_client
from sparkwright.host.images.image_names import digests_of, machine_platform
from sparkwright.host.images.registry_documents import NotInRegistry, RegistryDown
from sparkwright.host.models import hub, hub_info
from sparkwright.host.models.hub import Source
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module
from sparkwright.modules.image import docker_image
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import bounds, names
from sparkwright.trust.image_name import ImageReference
from sparkwright.trust.model_files import check_model_id, check_revision
from sparkwright.visible import one_line

#: facts that only the registry's own API reports
UNKNOWN_FACTS: dict[str, Any] = {"manifests": [], "engine_version": None, "created": None, "size_bytes": None}


class LockImage(Module["LockImage.Args"]):
    """Resolve a tag at the registry to its digest, with a manifest for each platform. Pulls nothing.

    The registry's API is used (with Docker's credentials), or the Docker Engine if the API cannot be reached from here: then
    manifests, engine_version, created and size_bytes are unknown. If nothing answers, or the tag is gone, an image with that
    tag on the host is used, and a note says so.

    Returns: digest, platforms, manifests (platform, digest, config, size_bytes), engine_version, created, size_bytes (null
    if unknown), gone (whether the pinned digest is no longer in the registry; null if not checked).

    Refused if the image does not support this host's platform. Fails if the tag does not exist or nothing answers, and the
    host has no image with that tag.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag")
        mirror: str = arg("a mirror, as HOST[:PORT]; used when the tag's registry is down", default="")
        pinned: str = arg("the digest in the lock, to check that it is still in the registry", default="")
        engine: EngineName = arg("the engine in the image, to read its version", default="vllm")

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        platform = machine_platform(context.machine)
        try:
            entry = self._registry_entry(api, args, platform, context)
        except (NotInRegistry, RegistryDown) as error:
            host_entry = self._host_entry(api, args)
            if host_entry is None:
                raise
            context.note(f"{error.message} Using the host's copy: {host_entry['digest']}")
            return Result(msg=host_entry["digest"], data=host_entry)
        docker_image.refuse_other_platforms(entry["platforms"], args.ref, platform)
        gone = _is_digest_gone(api, args) if args.pinned and args.pinned != entry["digest"] else None
        return Result(msg=entry["digest"], data={**entry, "gone": gone})

    @staticmethod
    def _registry_entry(api: Any, args: Args, platform: str, context: Context) -> dict[str, Any]:
        name = ImageReference.parse_checked(args.ref)
        try:
            return _query_registry(api, name, platform, context, args.engine)
        except RegistryDown as error:
            if not args.mirror:
                raise
            context.note(f"{error.message} Using the mirror {args.mirror}; its tag may be older.")
            return _query_registry(api, name.at_mirror(args.mirror), platform, context, args.engine)

    @staticmethod
    def _host_entry(api: Any, args: Args) -> dict[str, Any] | None:
        """Return the entry of the image on the host; None if the Docker Engine recorded no digest for it."""
        image = image_names.find(api, args.ref)
        repository = ImageReference.parse(args.ref).repository
        recorded_names = map(ImageReference.parse, image.get("RepoDigests") or ())
        digests = [name.digest for name in recorded_names if name.repository == repository] or digests_of(image)
        if not digests:
            return None
        return {
            **UNKNOWN_FACTS,
            "digest": digests[0],
            "platforms": [image_names.platform_of(image)],
            "created": image.get("Created"),
            "engine_version": get_engine(args.engine).version_in_image(image.get("Config") or {}),
            "gone": None,
        }


def _query_registry(
    api: Any, name: ImageReference, platform: str, context: Context, engine: EngineName
) -> dict[str, Any]:
    """Return the entry from the registry's API, or with fewer facts from the Docker Engine if the API is unreachable."""
    if not context.machine.sandbox:
        try:
            return registry_client.open_registry(api, name).entry(platform, get_engine(engine))
        except RegistryDown:
            pass  # the Docker Engine may have its own proxy, mirror or certificates
    return {**UNKNOWN_FACTS, **docker_image.query_registry(api, name)}


def _is_digest_gone(api: Any, args: LockImage.Args) -> bool | None:
    """Return True if the pinned digest is no longer in the registry, None if unknown."""
    name = ImageReference.parse(args.ref)
    try:
        docker_image.query_registry(api, ImageReference(name.repository, name.tag, args.pinned))
    except NotInRegistry:
        return True
    except SparkwrightError:
        return None
    return False


class LockModel(Module["LockModel.Args"]):
    """Resolve a branch at the hub to its commit, and list its files with their hashes. Downloads no weights.

    If the hub does not answer and `or_here` is set, a copy on the host is used, provided that each of its files was
    verified and has not changed since; a note says so, with the commit.

    Returns: commit, config (the keys of its config.json that identify the kind of model), files (path, size_bytes, sha256,
    blob_id), chat (properties of its chat template and its sampling defaults, from separate files or a GGUF file; null: not
    read), adapter (for a LoRA adapter: its base model, its rank, the sizes of its matrices).

    Refused if the engine serves single files and the patterns select none, or if `adapter` is set and the repository has no
    LoRA adapter.

    Fails if the model or revision does not exist, if the model is gated (the message says where to accept the licence), and
    if the hub is down and the host has no complete copy.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        revision: str = arg("branch, tag or commit", default="main")
        allow: list[str] = arg("only files that match one of these patterns", default_factory=list)
        ignore: list[str] = arg("skip files that match one of these patterns", default_factory=list)
        file: str = arg("for an engine that serves single files: pattern of the model's file", default="")
        mmproj: str = arg("pattern of the file for images and sound", default="")
        draft: str = arg("pattern of the file of a drafter", default="")
        token_secret: str = arg("the secret that holds the hub's token", default="HF_TOKEN")
        engine: EngineName = arg("the engine that will serve it", default="vllm")
        adapter: bool = arg("whether it is a LoRA adapter of another model", default=False)
        or_here: bool = arg("use the host's complete copy if the hub does not answer", default=False)

    def run(self, args: Args, context: Context) -> Result:
        try:
            data = _query_busy_hub(args, context)
        except hub.HubDown as error:
            copy = _find_complete_copy(args, context) if args.or_here else None
            if copy is None:
                raise
            try:
                files = _select_files(copy.entries(), args)
            except Refused:  # the copy consists of other files
                raise error from None
            context.note(f"{error.message} Using the complete copy on this host: {copy.folder}, commit {copy.commit}.")
            data = _build_copy_entry(copy, files, args)
        total_bytes = sum(file["size_bytes"] for file in data["files"])
        msg = f"commit {data['commit'][:12]}, {len(data['files'])} files, {units.format_size(total_bytes)}"
        return Result(msg=msg, data=data)


def _build_copy_entry(copy: Manifest, files: list[dict[str, Any]], args: LockModel.Args) -> dict[str, Any]:
    """Return the entry of a complete copy on this host."""
    if args.adapter:
        return _adapter_entry(
            copy.commit, files, args, lambda path, max_bytes: _read_beginning(copy.folder / path, max_bytes)
        )
    try:
        config = get_engine(args.engine).advice.relevant_config(bounds.read_config(copy.folder / hub.CONFIG_FILE))
    except (OSError, ValueError):
        config = None
    paths = [file["path"] for file in files]
    chat = hub_info.read_chat_settings(copy.folder, paths, args.engine, _served_file(files, args))
    return {"commit": copy.commit, "config": config, "files": files, "chat": chat}


def _read_beginning(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(max_bytes)


def _adapter_entry(
    commit: str, files: list[dict[str, Any]], args: LockModel.Args, read_file: Callable[[str, int], bytes]
) -> dict[str, Any]:
    """Return the entry of a LoRA adapter. Raises Refused if the files are not an adapter.

    Args:
        read_file: returns the beginning of a file, up to a number of bytes.
    """
    sizes = {file["path"]: file["size_bytes"] for file in files}
    engine_files = get_engine(args.engine).files
    if engine_files is not None:
        description = engine_files.adapter_of(read_file(_served_file(files, args), engine_files.BEGINNING_BYTES))
    else:
        if missing := [name for name in adapter.FILES if name not in sizes]:
            fix = "Name a repository with both files at its top level, not in a checkpoint's folder."
            raise Refused(f"{args.id} is not a LoRA adapter: it has no {' and no '.join(missing)}.", fix=fix)
        config = (
            read_file(adapter.CONFIG_FILE, bounds.MAX_CONFIG_BYTES)
            if sizes[adapter.CONFIG_FILE] <= bounds.MAX_CONFIG_BYTES
            else b""
        )
        description = adapter.parse_adapter(_parse_json(config), _read_header(read_file))
    if description is None:
        source = "GGUF file" if engine_files is not None else adapter.CONFIG_FILE
        raise Refused(
            f"{args.id} is not a LoRA adapter according to its {source}.", fix="Name a LoRA adapter's repository."
        )
    return {"commit": commit, "config": None, "files": files, "chat": None, "adapter": description}


def _read_header(read_file: Callable[[str, int], bytes]) -> dict[str, Any] | None:
    """Return the header of an adapter's weights; None if unreadable."""
    try:
        header = adapter.parse_header(read_file(adapter.WEIGHTS_FILE, adapter.BEGINNING_BYTES))
        if isinstance(header, int):
            header = adapter.parse_header(read_file(adapter.WEIGHTS_FILE, header))
    except hub.HubDown:
        raise
    except (Failed, OSError):
        return None
    return dict(header) if isinstance(header, Mapping) else None


def _parse_json(text: bytes) -> Any:
    try:
        return bounds.parse_json(text, max_bytes=bounds.MAX_CONFIG_BYTES, max_depth=bounds.MAX_CONFIG_DEPTH)
    except ValueError:
        return None


def _query_busy_hub(args: LockModel.Args, context: Context) -> dict[str, Any]:
    """Return the model's entry from the hub, after the pauses that the hub requests."""
    for _ in range(hub.ANSWER_RETRIES):
        try:
            return _query_hub(args, context)
        except hub.HubDown as error:
            if not error.pause_s or error.is_final:
                raise
            context.note(f"{error.message} Retrying in {error.pause_s:.0f} s.")
            time.sleep(error.pause_s)
    return _query_hub(args, context)


def _query_hub(args: LockModel.Args, context: Context) -> dict[str, Any]:
    for text, check in ((args.id, check_model_id), (args.revision, check_revision)):
        if reason := check(text):
            raise Failed(f"'{one_line(text, max_chars=80)}' {reason}.")
    source = Source(context.machine.hub_url, args.id, args.revision, context.secrets.get(args.token_secret))
    entry = hub_info.fetch_lock_entry(source, lambda path: _is_selected(path, args.allow, args.ignore))
    files = _select_files(entry["files"], args)
    source = replace(source, commit=entry["commit"])
    if args.adapter:
        return _adapter_entry(entry["commit"], files, args, partial(_download_beginning, source))
    config_file = next((file for file in entry["files"] if file["path"] == hub.CONFIG_FILE), None)
    config = hub_info.fetch_config(source, config_file) if config_file else None
    if get_engine(args.engine).files is not None:
        config = _fetch_file_config(source, files, args)
    elif config:
        config = get_engine(args.engine).advice.relevant_config(config)
    chat = hub_info.fetch_chat_settings(source, files, args.engine, _served_file(files, args))
    return {"commit": entry["commit"], "config": config, "files": files, "chat": chat}


def _download_beginning(source: Source, path: str, max_bytes: int) -> bytes:
    return hub.fetch_bytes(source, source.file_url(path), first_bytes=max_bytes)


def _fetch_file_config(source: Source, files: list[dict[str, Any]], args: LockModel.Args) -> dict[str, Any] | None:
    """Return the configuration from the beginning of the model's file; None if the hub does not serve parts of files."""
    engine_files, path = get_engine(args.engine).files, _served_file(files, args)
    if engine_files is None or not path:
        return None
    try:
        return engine_files.config_of(_download_beginning(source, path, engine_files.BEGINNING_BYTES))
    except hub.HubDown:
        raise
    except Failed:
        return None


def _served_file(files: list[dict[str, Any]], args: LockModel.Args) -> str:
    """Return the model's file for an engine that serves single files; "" for any other engine."""
    engine_files = get_engine(args.engine).files
    if engine_files is None:
        return ""
    return engine_files.select_files(files, args.file, args.mmproj, args.draft).flags.get("model", "")


def _select_files(files: list[dict[str, Any]], args: LockModel.Args) -> list[dict[str, Any]]:
    """Return the repository's files that the engine needs."""
    engine_files = get_engine(args.engine).files
    if engine_files is None:
        return files
    selection = engine_files.select_files(files, args.file, args.mmproj, args.draft, repository=args.id)
    return [dict(row) for row in selection.rows]


def _find_complete_copy(args: LockModel.Args, context: Context) -> Manifest | None:
    """Return a complete copy of this model on the host; None if there is none, or if copies of two commits match."""
    copies = [
        manifest
        for manifest in Manifest.load_all(context.state)
        if manifest.about.get("id") == args.id
        and manifest.is_complete()
        and (not names.COMMIT.fullmatch(args.revision) or manifest.commit == args.revision)
    ]
    return copies[0] if len({copy.commit for copy in copies}) == 1 else None


def _is_selected(path: str, allow: list[str], ignore: list[str]) -> bool:
    return (not allow or _matches_any(path, allow)) and not _matches_any(path, ignore)


def _matches_any(path: str, patterns: list[str]) -> bool:
    """Return True if a path matches a glob pattern or equals one (a name with brackets does not match itself as a glob)."""
    return path in patterns or any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
