"""Modules that restore, verify and serve the files of a model, and drop them from the page cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host import peers
from sparkwright.host.containers import containers
from sparkwright.host.memory import memory_fit
from sparkwright.host.models import model_folders, peer
from sparkwright.host.models.manifest import Manifest, total_bytes
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import verified_states
from sparkwright.modules.memory import MemoryArgs
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.model_files import check_files
from sparkwright.units import format_gib
from sparkwright.visible import format_count, join_first

DROP_CACHES_FILE = "/proc/sys/vm/drop_caches"


class PageCache(Module["PageCache.Args"]):
    """Drop the model's files from the page cache, because CUDA counts it as used memory on a Spark.

    As root (`become: true`), the kernel drops all clean pages. Without root, the kernel is advised to drop the pages of each
    of the model's files, once their unwritten data is on disk. Pages that a running process has mapped stay. Only memory use
    and the duration of the next read are affected.

    `policy: fit` keeps the page cache if MemFree alone, without reclaimable memory, is enough for the engine and the reserve.
    The next load then reads from memory.

    Returns: how (dropped, advised or kept), freed_bytes (decrease of the page cache), files (number of advised files).
    """

    valid_in_check_mode = False

    @dataclass(frozen=True, kw_only=True)
    class Args(MemoryArgs):
        model_dir: str = arg("the folder of the model's files", default="")
        models: list[dict[str, Any]] = arg(
            "other models of the server, each with its folder `dir`", default_factory=list
        )
        policy: Literal["drop", "fit"] = arg(
            "fit: drop only if the server does not fit otherwise; the arguments about memory are for `fit`",
            default="drop",
        )

    def run(self, args: Args, context: Context) -> Result:
        if args.policy == "fit" and (reason := _explain_kept_cache(args, context)):
            return Result(msg=reason, data={"how": "kept", "freed_bytes": 0, "files": 0})
        if context.check:
            return Result(msg="page cache is dropped")
        bytes_before = context.machine.meminfo().get("Cached", 0)
        if os.geteuid() == 0 and not context.machine.root and _drop_caches():
            method, file_count = "dropped", 0
        else:
            folders = [folder for folder in (args.model_dir, *(str(model["dir"]) for model in args.models)) if folder]
            method, file_count = "advised", sum(drop_cached_pages(context.machine.expand(folder)) for folder in folders)
        freed_bytes = max(0, bytes_before - context.machine.meminfo().get("Cached", 0))
        data = {"how": method, "freed_bytes": freed_bytes, "files": file_count}
        return Result(msg=f"{format_gib(freed_bytes)} GiB dropped", data=data)


def _explain_kept_cache(args: PageCache.Args, context: Context) -> str:
    """Return why the page cache can stay, or "" if the server does not fit into MemFree or its memory need is unknown."""
    server = args.planned_server()
    budget = memory_fit.compute_budget(context, server, args.reserve_gib)
    free_bytes = context.machine.meminfo().get("MemFree", 0)
    if not budget.owner_bytes("server") or free_bytes < budget.need_bytes:
        return ""
    return f"page cache kept: {format_gib(free_bytes)} GiB free, {format_gib(budget.need_bytes)} GiB needed"


def _drop_caches() -> bool:
    """Run `sync; echo 3 > drop_caches` as root. Returns False if that is not permitted, such as in a container."""
    os.sync()
    try:
        Path(DROP_CACHES_FILE).write_text("3\n")
    except OSError:
        return False
    return True


def drop_cached_pages(folder: Path) -> int:
    """Drop the cached pages of all files under a folder, without root. Returns the number of files."""
    count = 0
    for path in filter(Path.is_file, folder.rglob("*")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fdatasync(file.fileno())  # the kernel drops only clean pages
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count += 1
    return count


class RestoreModelFiles(StateModule["RestoreModelFiles.Args", str]):
    """Restore the model files that the verified server was started with, if another revision replaced them.

    For a run that fails after the download of a revision and before the server is replaced: the previous server still has
    the old weights in memory, but would load the new ones after a restart. If an interrupted run has already started another
    container with the verified server's name, that container uses the new files, and nothing is restored.

    Returns: commit (of the restored files; empty if nothing was restored).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def read(self, args: Args, context: Context) -> str:
        commit_by_folder = model_folders.replaced_folders(context)
        return next(iter(commit_by_folder.values())) if commit_by_folder and not _is_replaced(context) else ""

    def differences(self, args: Args, observed: str) -> list[Change]:
        return [Change("model files", None, observed[:12])] if observed else []

    def describe(self, args: Args, observed: str) -> dict[str, Any]:
        return {"commit": observed, "msg": "" if observed else "nothing was replaced"}

    def act(self, args: Args, observed: str, changes: list[Change], context: Context) -> dict[str, Any]:
        commit_by_folder = model_folders.replaced_folders(context)
        restored_count = sum(model_folders.restore_kept_with_manifest(context, folder) for folder in commit_by_folder)
        commits = ", ".join(commit[:12] for commit in commit_by_folder.values())
        return {"msg": f"{format_count(restored_count, 'model file')} restored to {commits}"}


def _is_replaced(context: Context) -> bool:
    """Return True if another container has the verified server's name."""
    verified_state = verified_states.load_last(context.state)
    container = containers.inspect(context.docker(), verified_state.spec["name"])
    return container is not None and container["Id"] != verified_state.container_id


class ShareModel(Module["ShareModel.Args"]):
    """Serve a verified model to other hosts, for one copy each, over HTTP with a token.

    The server ends when all readers are done, or two minutes after the last request. Used by `invoke models.copy`, by
    `hf_model: {from: HOST}`, and by the member of a cluster that has the model, for members without it.

    Returns: urls (the fastest link first), dir, size_bytes.

    Fails if files of the model are missing or wrong.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each file, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        readers: int = arg("number of hosts that will copy it", default=1)
        bind: str = arg("the address to listen on; empty: all of this host's", default="")
        interfaces: list[str] = arg(
            "with bind: the fabric's interfaces; the server listens on their other addresses too", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        check_files(args.files, f"the list of files of {args.id}")
        token = peer.copy_token(context.secrets)
        if token is None:
            raise Failed(f"no token to serve {args.id}.", fix="Use `invoke models.copy`.")
        manifest, missing_paths = self._find_complete_folder(args, context)
        if missing_paths:
            fix = "Deploy that host first, or copy from another host."
            raise Failed(f"{args.id} is incomplete in {manifest.folder}: {join_first(missing_paths, 3)}.", fix=fix)
        manifest.save()
        if context.check:
            return Result(msg=f"{args.id} is complete in {manifest.folder}")
        revision = (args.id, args.commit)

        def serve_copy(bind_address: str) -> int:
            return peer.start_server(
                context.machine, manifest.folder, revision, args.files, token, args.readers, bind_address
            )

        location = ""
        if args.bind:
            urls = peers.serve_on_each(args.bind, args.interfaces, serve_copy, context.note)
            location = f" on {peers.format_urls(urls)}"
        else:
            port = serve_copy("")
            urls = [f"http://{address}:{port}" for address in peers.list_addresses()]
        data = {"urls": urls, "dir": str(manifest.folder), "size_bytes": total_bytes(args.files)}
        return Result(msg=f"serving {args.id} from {manifest.folder}{location}", data=data)

    @staticmethod
    def _find_complete_folder(args: Args, context: Context) -> tuple[Manifest, list[str]]:
        """Return the manifest of `dir`, or of another folder that has the complete model; and the missing files."""
        manifest = Manifest.load(context.state, context.machine.expand(args.dir))
        missing_paths = manifest.verify(args.files)
        if missing_paths:
            for other in Manifest.load_all(context.state):
                is_same_model = (other.about.get("id"), other.commit) == (args.id, args.commit)
                if is_same_model and all(other.is_verified(file) for file in args.files):
                    return other, []
        return manifest, missing_paths


class VerifyModel(Module["VerifyModel.Args"]):
    """Check that the locked files are complete and correct in a folder. Does not contact the hub.

    Files that were verified before and have not changed since cost only one stat each. With deep, all files are read and
    hashed again, which detects silent disk corruption; then they are dropped from the page cache.

    Returns: dir, wrong (missing or wrong paths), files (their number), size_bytes.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each file, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        deep: bool = arg("hash verified files again", default=False)
        models: list[dict[str, Any]] = arg(
            "other models of the server: role, id, commit, files and dir of each", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        main_model = {"id": args.id, "commit": args.commit, "files": args.files, "dir": args.dir}
        models = (main_model, *args.models)
        wrong_paths = [path for model in models for path in _verify_model(model, context, deep=args.deep)]
        files = [file for model in models for file in model["files"]]
        size_bytes = total_bytes(files)
        method = "read again" if args.deep else "as verified before"
        summary = f"{format_count(len(files), 'file')}, {units.format_size(size_bytes)}, {method}"
        msg = f"missing or wrong: {join_first(wrong_paths, 3)}" if wrong_paths else summary
        folder = str(context.machine.expand(args.dir))
        return Result(
            msg=msg, data={"dir": folder, "wrong": wrong_paths, "files": len(files), "size_bytes": size_bytes}
        )


def _verify_model(model: Mapping[str, Any], context: Context, *, deep: bool) -> list[str]:
    """Return a model's missing or wrong files, prefixed with its role if it is an additional model."""
    files = model["files"]
    check_files(files, f"the list of files of {model['id']}")
    manifest = Manifest.load(context.state, context.machine.expand(model["dir"]))
    wrong_paths = manifest.verify(files, deep=deep)
    if not wrong_paths:
        manifest.about = {"id": model["id"], "commit": model["commit"], "paths": [file["path"] for file in files]}
        wrong_paths = manifest.missing_shards(files)
    if manifest.rows:
        manifest.save()
    role = f"{model['role']}: " if model.get("role") else ""
    return [f"{role}{path}" for path in wrong_paths]
