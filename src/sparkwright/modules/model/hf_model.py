"""Modules that download a model, and a server's additional models."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sparkwright import units
from sparkwright.engines.engine import EngineName
from sparkwright.engines.model import chat_template
from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, hub_info, model_folders
from sparkwright.host.models.file_transfer import bytes_by_address
from sparkwright.host.models.hub import Source
from sparkwright.host.models.manifest import Manifest, total_bytes
from sparkwright.host.models.transfer import DEFAULT_MAX_TRIES, RetryPolicy, Transfer
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import verified_states
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.model_files import check_files
from sparkwright.trust.names import resolve_entry
from sparkwright.visible import format_count, one_line

#: required disk space, as a multiple of the size of the missing files
DISK_SPACE_FACTOR = 1.05
#: fields of an additional model that are arguments of `hf_model`
MODEL_FIELDS = ("id", "commit", "files", "dir", "transfer")
#: name of each change in the diff, by its label from chat_template.list_changes
CHAT_LABELS = {
    "template": "chat template",
    "thinking": "chat template: thinking",
    "turns": "chat template: earlier turns",
    "system": "chat template: system prompt",
    "date": "chat template: date",
    "sampling": "sampling defaults",
}
MIN_REPORTED_CACHE_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class HfModelState:
    """The state of a model's folder."""

    #: paths of files that are missing or wrong
    missing_paths: list[str]
    #: paths of the previous revision's files that this revision lacks
    obsolete_paths: list[str]
    manifest: Manifest
    #: chat template and sampling defaults of the previous revision; None if unknown
    previous_chat: dict[str, Any] | None = None


class HfModel(StateModule["HfModel.Args", HfModelState]):
    """Download the locked files of a model into its folder, verify each by its hash, and remove files of older revisions.

    Files that were verified before cost only one stat each. Missing, truncated and wrong files are reported and downloaded
    to a staging folder; when the hashes of all files are correct, they are moved into place together, so a server never
    reads an incomplete model. Disk space is checked first (+5 %). If all files are complete, the hub is not contacted. All
    shards that a safetensors index lists must exist.

    transfer: `hf_transfer` reads a file in parallel ranges (for throttled connections); `plain` downloads files in parallel
    and resumes them (for fast mirrors); `xet` uses the hub's chunk store; `auto` measures each for a second and reports its
    choice. If no new byte is written for stall_seconds, the transfer is killed and continues in another mode. Partial files
    that the mode cannot resume are removed first, because resuming them would corrupt the file.

    Files that a verified server was started with are kept (hard links in .before/) until another revision is verified.

    If another revision changes the chat template or the sampling defaults, the changes are part of the diff, in a plan and
    in a deploy.

    from: another host of the inventory that has the model; the files are copied from there instead of the hub, and verified
    by the same hashes. In a cluster, peer gives the URLs of another member that serves it (`share_model`).

    Downloaded files stay in the page cache, which counts against the GPU's memory on a Spark until the `memory` task drops
    it; page_cache_bytes is its growth.

    Returns: dir, commit, size_bytes, complete (whether no file was missing before), fetched (paths); after a download also
    mode and page_cache_bytes.

    Fails if the model is gated (the message has the URL where its licence can be accepted), if the hub is down, if the disk
    is full or not writable, or if a file's hash is wrong twice.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each file, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        transfer: Literal["auto", "hf_transfer", "plain", "xet"] = arg("the transfer mode", default="auto")
        stall_seconds: float = arg(
            "abort and retry a transfer that receives no data for this long, in seconds", default=60.0
        )
        tries: int = arg(
            "tries in a row without progress before it fails; the delay between them grows", default=DEFAULT_MAX_TRIES
        )
        token_secret: str = arg("the secret that holds the hub's token", default="HF_TOKEN")
        from_: str = arg("host to copy the model from; empty: the hub", default="")
        peer: list[str] = arg(
            "URLs at which that host serves the model; set by the command, or by a cluster's play", default_factory=list
        )
        together: bool = arg(
            "use all peer URLs in parallel, as the halves of one fabric port; otherwise the first that answers",
            default=False,
        )
        chat: dict[str, Any] | None = arg(
            "the chat template's properties in the lock, to compare with the previous revision; null: unknown",
            default=None,
        )
        engine: EngineName = arg("the engine that serves the model", default="vllm")

    def __init__(self, retry_policy: RetryPolicy | None = None) -> None:
        self._retry_policy = retry_policy

    def read(self, args: Args, context: Context) -> HfModelState:
        check_files(args.files, f"the list of files of {args.id}")
        manifest = Manifest.load(context.state, context.machine.expand(args.dir))
        missing_paths = manifest.verify(args.files, on_bytes=_progress_reporter(context, total_bytes(args.files)))
        obsolete_paths = _find_obsolete_files(manifest, args)
        if context.check:
            manifest.remember()  # a deploy runs in check mode first; its second run need not hash the files again
        if not missing_paths and not obsolete_paths:
            _refuse_missing_shards(manifest, args)
            manifest.about = _folder_record(args)
            manifest.forget_missing()
            if not context.check:
                manifest.save()
        return HfModelState(
            missing_paths,
            obsolete_paths,
            manifest,
            _previous_chat(manifest, args) if missing_paths or obsolete_paths else None,
        )

    def differences(self, args: Args, observed: HfModelState) -> list[Change]:
        changes = []
        if observed.previous_chat is not None and args.chat is not None:
            for label, before, after in chat_template.list_changes(observed.previous_chat, args.chat):
                changes.append(Change(CHAT_LABELS[label], before, after, "changed by the new revision"))
        sizes = {file["path"]: file["size_bytes"] for file in args.files}
        for path in observed.missing_paths:
            current = _describe_file(observed.manifest.folder / path, sizes[path])
            changes.append(Change(path, current, f"{sizes[path]} bytes", "missing or changed"))
        return changes + [Change(path, "present", None, "not in this revision") for path in observed.obsolete_paths]

    def describe(self, args: Args, observed: HfModelState) -> dict[str, Any]:
        size_bytes = total_bytes(args.files)
        summary = f"{format_count(len(args.files), 'file')}, {units.format_size(size_bytes)}, all hashes match"
        return {
            "dir": str(observed.manifest.folder),
            "commit": args.commit,
            "complete": not observed.missing_paths,
            "size_bytes": size_bytes,
            "fetched": [],
            "msg": "" if observed.missing_paths or observed.obsolete_paths else summary,
        }

    def act(self, args: Args, observed: HfModelState, changes: list[Change], context: Context) -> dict[str, Any]:
        folder, missing_paths = observed.manifest.folder, set(observed.missing_paths)
        files = [file for file in args.files if file["path"] in missing_paths]
        size_bytes = total_bytes(files)
        cached_bytes_before = context.machine.meminfo().get("Cached", 0)
        with _open_source(args, context) as source:
            _prepare_folder(folder, size_bytes, context)
            file_transfer.remove_leftovers(folder)
            _keep_verified_files(args, observed, context)
            observed.manifest.about = observed.manifest.about or {"id": args.id, "commit": args.commit}
            retry_policy = self._retry_policy or RetryPolicy(max_tries=args.tries)
            transfer = Transfer(source, observed.manifest, files, context, args.stall_seconds, retry_policy)
            mode = transfer.run(_first_mode(args)) if files else ""
            sizes_by_address = bytes_by_address(files, transfer.url_by_path) if args.together else {}
        for path in observed.obsolete_paths:
            resolve_entry(folder, path).unlink(missing_ok=True)
            observed.manifest.rows.pop(path, None)
        try:
            _refuse_missing_shards(observed.manifest, args)
            observed.manifest.about = _folder_record(args)
        finally:
            observed.manifest.save()
        growth_bytes = max(0, context.machine.meminfo().get("Cached", 0) - cached_bytes_before)
        if growth_bytes > MIN_REPORTED_CACHE_BYTES:
            growth = units.format_size(growth_bytes)
            context.note(f"the page cache grew by {growth}; it counts as used memory until it is dropped.")
        msg = f"{format_count(len(files), 'file')} downloaded, {units.format_size(size_bytes)}, all hashes match"
        if args.from_ and files:
            msg += f"; from {args.from_}"
            if len(sizes_by_address) > 1:
                addresses = (f"{address} ({units.format_size(size)})" for address, size in sizes_by_address.items())
                msg += f" over {', '.join(addresses)}"
        if observed.obsolete_paths:
            msg += f"; {format_count(len(observed.obsolete_paths), 'file')} of the previous revision removed"
        return {"fetched": sorted(missing_paths), "mode": mode, "page_cache_bytes": growth_bytes, "msg": msg}


def _find_obsolete_files(manifest: Manifest, args: HfModel.Args) -> list[str]:
    """Return the previous revision's files that this revision lacks. Files that users added are not included."""
    if manifest.about.get("id") != args.id:
        return []
    current_paths = {file["path"] for file in args.files}
    paths = manifest.about.get("paths", ())
    return [path for path in paths if path not in current_paths and (manifest.folder / path).exists()]


def _previous_chat(manifest: Manifest, args: HfModel.Args) -> dict[str, Any] | None:
    """Return the chat template and sampling defaults of the revision in the folder; None if it is not another revision."""
    record = manifest.about
    if args.chat is None or record.get("id") != args.id or record.get("commit") in (None, "", args.commit):
        return None
    return hub_info.read_chat_settings(manifest.folder, record.get("paths", ()), args.engine)


def _keep_verified_files(args: HfModel.Args, observed: HfModelState, context: Context) -> None:
    """Keep the files that the verified server was started with, for a rollback, until another revision is verified.

    If another selection of files from the same commit is deployed, keep only those that change: a file in both selections is
    downloaded only if it is wrong.
    """
    folder, paths = observed.manifest.folder, sorted([*observed.missing_paths, *observed.obsolete_paths])
    models = verified_states.models_of(verified_states.load_last(context.state).model)
    model_dirs = ((model.get("dir"), model.get("commit")) for model in models)
    verified_commit = next(
        (commit for path, commit in model_dirs if path and context.machine.expand(path) == folder), None
    )
    if not verified_commit:
        return
    if verified_commit == args.commit:
        paths = [path for path in paths if path in observed.obsolete_paths or not (folder / path).exists()]
    if verified_commit == args.commit and not observed.obsolete_paths:
        return
    is_first = not model_folders.kept_commit(folder)
    try:
        model_folders.keep_files(folder, paths, verified_commit)
        observed.manifest.keep_saved(first=is_first)
    except OSError as error:
        context.note(
            f"cannot keep the files of {verified_commit[:12]} ({error.strerror}): a rollback must download them again."
        )


def _folder_record(args: HfModel.Args) -> dict[str, Any]:
    return {"id": args.id, "commit": args.commit, "paths": sorted(str(file["path"]) for file in args.files)}


@contextmanager
def _open_source(args: HfModel.Args, context: Context) -> Iterator[Source]:
    """Yield the source of the files: the hub, or the host in `from`."""
    if not args.from_:
        yield Source(context.machine.hub_url, args.id, args.commit, context.secrets.get(args.token_secret))
        return
    if not args.peer:
        raise Failed(f"{args.from_} does not serve {args.id} for copying.", fix="Use `invoke models.copy`.")
    from sparkwright.host.models import peer

    token = peer.copy_token(context.secrets)
    if not args.together:
        with peer.reach_first(args.peer, args.from_, token) as url:
            yield Source(url, args.id, args.commit, token, is_peer=True)
        return
    with peer.reach_all(args.peer, args.from_, token) as urls:
        if unreachable := [url for url in args.peer if url not in urls]:
            context.note(
                f"{args.from_} does not answer at {', '.join(unreachable)}: copying over {', '.join(urls)} only."
            )
        yield Source(urls[0], args.id, args.commit, token, tuple(urls[1:]), is_peer=True)


def _first_mode(args: HfModel.Args) -> str:
    """Return the first transfer mode. From a peer, which does not throttle connections, it is `plain`, which can resume."""
    return "plain" if args.from_ and args.transfer in ("auto", "xet") else args.transfer


def _refuse_missing_shards(manifest: Manifest, args: HfModel.Args) -> None:
    if missing := manifest.missing_shards(args.files):
        fix = "Check `allow` and `ignore` of the recipe's model, then remove its entry from spark.lock."
        names = ", ".join(one_line(name, max_chars=80) for name in missing[:5])
        raise Failed(f"the index of {args.id} names missing files: {names}.", fix=fix)


def _progress_reporter(context: Context, total_bytes: int) -> Callable[[int], None]:
    """Return a thread-safe function that adds a number of read bytes and reports the progress."""
    lock, read_bytes = threading.Lock(), 0

    def report(count: int) -> None:
        nonlocal read_bytes
        with lock:
            read_bytes += count
            context.progress(min(read_bytes, total_bytes - 1), total_bytes, unit="bytes", text="verifying")

    return report


def _describe_file(path: Path, expected_bytes: int) -> str | None:
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return None
    return "wrong" if size_bytes == expected_bytes else f"{size_bytes} bytes"


def _prepare_folder(folder: Path, need_bytes: int, context: Context) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        fix = "Create it as root and chown it to this user, or choose another `model.dir`."
        raise Failed(f"no permission to create {folder}.", fix=fix) from None
    except (FileExistsError, NotADirectoryError):
        raise Failed(f"{folder} is not a directory.", fix="Choose another `model.dir`.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = "Run `sudo chown -R $USER` on it on the host, or choose another `model.dir`."
        raise Failed(f"no permission to write in {folder}.", fix=fix)
    free_bytes = context.machine.free_bytes(folder)
    if need_bytes * DISK_SPACE_FACTOR > free_bytes:
        space = f"{units.format_size(need_bytes * DISK_SPACE_FACTOR)} needed, {units.format_size(free_bytes)} free"
        fix = "Free some space, or choose another `model.dir`."
        raise Failed(f"not enough disk space for {folder}: {space}.", fix=fix)


class SecondModels(Module["SecondModels.Args"]):
    """Download the locked files of a server's additional models (a drafter, a tokenizer), and verify each by its hash.

    Downloads each model from the hub, as `hf_model` does.

    Returns: models (for each, its role and the return values of `hf_model`).

    Fails in the same cases as `hf_model`.
    """

    @dataclass(frozen=True)
    class Args:
        models: list[dict[str, Any]] = arg(
            "role, id, commit, files, dir and transfer of each, as in `pinned_model.models`",
            default_factory=list,
        )

    def run(self, args: Args, context: Context) -> Result:
        results = [(str(model["role"]), self._download_model(model, context)) for model in args.models]
        return Result(
            msg="; ".join(f"{role}: {result.msg}" for role, result in results),
            changed=any(result.changed for _, result in results),
            diff=[
                replace(change, field=f"{role}: {change.field}") for role, result in results for change in result.diff
            ],
            data={"models": [{"role": role, **result.data} for role, result in results]},
        )

    @staticmethod
    def _download_model(model: dict[str, Any], context: Context) -> Result:
        try:
            return HfModel().run(HfModel.Args(**{name: model[name] for name in MODEL_FIELDS}), context)
        except KeyError as error:
            raise Failed(f"the {model['role']} has no {error.args[0]}.", fix="Run `invoke lock`.") from None
