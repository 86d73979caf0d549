"""Modules about the download of a model and of second models."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sparkwright import units
from sparkwright.engines.engine import Name as EngineName
from sparkwright.engines.model import chat_template
from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, hub_info, model_folders
from sparkwright.host.models.file_transfer import bytes_by_address
from sparkwright.host.models.hub import Source
from sparkwright.host.models.manifest import Manifest, total_bytes
from sparkwright.host.models.transfer import RetryPolicy, Transfer
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import verified_states
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.model_files import check_files
from sparkwright.trust.names import resolve_entry
from sparkwright.visible import format_count, one_line

DISK_MARGIN = 1.05
#: labels of engines.model.chat_template.lines
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
    missing: list[str]
    #: paths of the previous revision's files that this revision does not have
    dropped: list[str]
    manifest: Manifest
    #: chat template and sampling defaults of the previous revision; None if they were not read or there is no previous revision
    chat: dict[str, Any] | None = None


class HfModel(StateModule["HfModel.Args", HfModelState]):
    """Download the locked files of a model into its folder, verify each by its hash, and remove files of older revisions.

    Files that were verified before need one stat each. A file that is missing, truncated or wrong is reported and downloaded
    to a temporary place; when the hashes of all files are right they are moved into place together, so a server never reads
    a partial model. Disk space is checked first (+5 %). If all files are complete, the hub is not contacted. Every shard
    that a safetensors index names must exist.

    transfer: `hf_transfer` reads a file in parallel ranges (for throttled connections); `plain` downloads files in parallel
    and resumes them (for fast mirrors); `xet` uses the hub's chunk store; `auto` measures each for a second and reports its
    choice. If no new byte is written for stall_seconds, the transfer is killed and continues in the next mode. Partial files
    of another mode or hub version are removed first, because continuing one corrupts it silently.

    Files that a verified server was started with are kept (hard links in .before/) until another revision is verified.

    Changes of the chat template and the sampling defaults in another revision are part of the difference, in a plan and in a
    deploy.

    from: another host of the inventory that has the model; its files are copied from there instead of the hub, and verified
    by the same hashes. In a cluster, peer gives the URLs of another member that serves it (`share_model`).

    Files that were read and written stay in the page cache, which counts against the GPU's memory on a Spark until the
    `memory` task drops it; page_cache_bytes says by how much it grew.

    Returns: dir, commit, size_bytes, complete (whether it was complete before), fetched (paths), mode, page_cache_bytes.

    Fails: gated (the message says where to accept the licence), hub down, disk full, no permission, a file wrong twice.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        transfer: Literal["auto", "hf_transfer", "plain", "xet"] = arg("how files are fetched", default="auto")
        stall_seconds: float = arg(
            "abort a transfer that receives nothing for this long and retry, seconds", default=60.0
        )
        tries: int = arg("retries in a row without progress before giving up; the delay between them grows", default=6)
        token_secret: str = arg("the secret that holds the hub's token", default="HF_TOKEN")
        from_: str = arg("host to copy the model from; empty: the hub", default="")
        peer: list[str] = arg(
            "URLs at which that host serves it; set by the command, or by a cluster's play", default_factory=list
        )
        together: bool = arg(
            "use all of those URLs in parallel, as the halves of one fabric port; otherwise the first that answers",
            default=False,
        )

        chat: dict[str, Any] | None = arg(
            "its chat template's properties in the lock, to compare with the previous revision; null: not read",
            default=None,
        )
        engine: EngineName = arg("the engine that serves it", default="vllm")

    def __init__(self, retry_policy: RetryPolicy | None = None) -> None:
        self._retry_policy = retry_policy

    def read(self, args: Args, context: Context) -> HfModelState:
        check_files(args.files, f"the list of files of {args.id}")
        manifest = Manifest.load(context.state, context.machine.expand(args.dir))
        missing = manifest.verify(args.files, on_bytes=_progress_reporter(context, total_bytes(args.files)))
        dropped = _find_dropped_files(manifest, args)
        if context.check:
            manifest.remember()  # a deploy asks in check mode first, and hashes once
        if not missing and not dropped:
            _refuse_lost_shards(manifest, args)
            manifest.about = _folder_record(args)
            manifest.forget_missing()
            if not context.check:
                manifest.save()
        return HfModelState(missing, dropped, manifest, _previous_chat(manifest, args) if missing or dropped else None)

    def differences(self, args: Args, observed: HfModelState) -> list[Change]:
        folder, expected_sizes = observed.manifest.folder, {file["path"]: file["size_bytes"] for file in args.files}
        missing = [
            (path, _describe_file(folder / path, expected_sizes[path]), f"{expected_sizes[path]} bytes")
            for path in observed.missing
        ]
        changes = [Change(*fields, "missing or changed") for fields in missing]
        if observed.chat is not None and args.chat is not None:
            rows = chat_template.list_changes(observed.chat, args.chat)
            why = "changed by the new revision"
            changes = [Change(CHAT_LABELS[label], before, after, why) for label, before, after in rows] + changes
        return changes + [Change(path, "there", None, "not in this revision") for path in observed.dropped]

    def describe(self, args: Args, observed: HfModelState) -> dict[str, Any]:
        size = total_bytes(args.files)
        summary = f"{format_count(len(args.files), 'file')}, {units.format_size(size)}, all hashes match"
        msg = "" if observed.missing or observed.dropped else summary
        fields = {"dir": str(observed.manifest.folder), "commit": args.commit, "complete": not observed.missing}
        return {**fields, "size_bytes": size, "fetched": [], "msg": msg}

    def act(self, args: Args, observed: HfModelState, changes: list[Change], context: Context) -> dict[str, Any]:
        folder, missing = observed.manifest.folder, set(observed.missing)
        files = [file for file in args.files if file["path"] in missing]
        size = total_bytes(files)
        _prepare_folder(folder, size, context)
        file_transfer.remove_leftovers(folder)
        _keep_verified_files(args, observed, context)
        observed.manifest.about = observed.manifest.about or {"id": args.id, "commit": args.commit}
        cached_before = context.machine.meminfo().get("Cached", 0)
        with _open_source(args, context) as source:
            retry_policy = self._retry_policy or RetryPolicy(tries=args.tries)
            transfer = Transfer(source, observed.manifest, files, context, args.stall_seconds, retry_policy)
            mode = transfer.run(_first_mode(args)) if files else ""
            transferred_bytes = bytes_by_address(files, transfer.url_by_path) if args.together else {}
        for path in observed.dropped:
            resolve_entry(folder, path).unlink(missing_ok=True)
            observed.manifest.rows.pop(path, None)
        try:
            _refuse_lost_shards(observed.manifest, args)
            observed.manifest.about = _folder_record(args)
        finally:
            observed.manifest.save()
        grown = max(0, context.machine.meminfo().get("Cached", 0) - cached_before)
        if grown > MIN_REPORTED_CACHE_BYTES:
            context.note(
                f"the page cache grew by {units.format_size(grown)}; it counts as used memory until it is dropped."
            )
        msg = f"{format_count(len(files), 'file')} downloaded, {units.format_size(size)}, all hashes match"
        if args.from_ and files:
            msg += f"; from {args.from_}"
            msg += (
                f" over {', '.join(f'{key} ({units.format_size(size)})' for key, size in transferred_bytes.items())}"
                if len(transferred_bytes) > 1
                else ""
            )
        if observed.dropped:
            msg += f"; {len(observed.dropped)} of the previous revision removed"
        return {"fetched": sorted(missing), "mode": mode, "page_cache_bytes": grown, "msg": msg}


def _find_dropped_files(manifest: Manifest, args: HfModel.Args) -> list[str]:
    """Return the paths of files of another revision that are not part of this one. Files that others put there stay."""
    if manifest.about.get("id") != args.id:
        return []
    current_paths = {file["path"] for file in args.files}
    paths = manifest.about.get("paths", ())
    return [path for path in paths if path not in current_paths and (manifest.folder / path).exists()]


def _previous_chat(manifest: Manifest, args: HfModel.Args) -> dict[str, Any] | None:
    """Return chat template and sampling defaults of the revision in the folder; None if it is the same revision or another
    model."""
    record = manifest.about
    if args.chat is None or record.get("id") != args.id or record.get("commit") in (None, "", args.commit):
        return None
    return hub_info.read_chat_settings(manifest.folder, record.get("paths", ()), args.engine)


def _keep_verified_files(args: HfModel.Args, observed: HfModelState, context: Context) -> None:
    """Keep the files that the verified server was started with until another revision is verified: a rollback needs them.

    The same for another choice of files from the same commit. A file of both choices is fetched again only because it is wrong.
    """
    folder, paths = observed.manifest.folder, sorted([*observed.missing, *observed.dropped])
    models = verified_states.models_of(verified_states.load_last(context.state))
    matching = (model for model in models if model.get("dir") and context.machine.expand(model["dir"]) == folder)
    verified_commit = next(matching, {}).get("commit")
    if not verified_commit:
        return
    if verified_commit == args.commit:
        paths = [path for path in paths if path in observed.dropped or not (folder / path).exists()]
    if verified_commit == args.commit and not observed.dropped:
        return
    first = not model_folders.kept_commit(folder)
    try:
        model_folders.keep_files(folder, paths, verified_commit)
        observed.manifest.keep_saved(first=first)
    except OSError as error:
        outcome = "a rollback has to download them again"
        context.note(f"cannot keep the files of {verified_commit[:12]} ({error.strerror}): {outcome}.")


def _folder_record(args: HfModel.Args) -> dict[str, Any]:
    """Return the record of a complete folder: model id, commit and paths."""
    return {"id": args.id, "commit": args.commit, "paths": sorted(str(file["path"]) for file in args.files)}


@contextmanager
def _open_source(args: HfModel.Args, context: Context) -> Iterator[Source]:
    """Yield the source of the files: the hub, or the host that `from` names."""
    if not args.from_:
        yield Source(context.machine.hub_url, args.id, args.commit, context.secrets.get(args.token_secret))
        return
    if not args.peer:
        raise Failed(f"{args.from_} does not serve {args.id} for copying.", fix="Use `invoke models.copy`.")
    from sparkwright.host.models import peer

    token = peer.copy_token(context.secrets)
    if not args.together:
        with peer.reach_first(args.peer, args.from_, token) as url:
            yield Source(url, args.id, args.commit, token)
        return
    with peer.reach_all(args.peer, args.from_, token) as urls:
        if lost := [url for url in args.peer if url not in urls]:
            context.note(f"{args.from_} does not answer at {', '.join(lost)}: copying over {', '.join(urls)} alone.")
        yield Source(urls[0], args.id, args.commit, token, tuple(urls[1:]))


def _first_mode(args: HfModel.Args) -> str:
    """Return the first transfer mode: `plain` from a peer, which does not throttle connections, as it can resume."""
    return "plain" if args.from_ and args.transfer in ("auto", "xet") else args.transfer


def _refuse_lost_shards(manifest: Manifest, args: HfModel.Args) -> None:
    if lost := manifest.missing_shards(args.files):
        fix = "Check `allow` and `ignore` of the recipe's model, then remove its entry from spark.lock."
        some = ", ".join(one_line(name, max_chars=80) for name in lost[:5])
        raise Failed(f"the index of {args.id} names missing files: {some}.", fix=fix)


def _progress_reporter(context: Context, total_bytes: int) -> Callable[[int], None]:
    """Return a function that adds up what several threads have read, and reports the progress."""
    guard, done = threading.Lock(), 0

    def report(count: int) -> None:
        nonlocal done
        with guard:
            done += count
            context.progress(min(done, total_bytes - 1), total_bytes, unit="bytes", text="verifying")

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
    free = context.machine.free_bytes(folder)
    if need_bytes * DISK_MARGIN > free:
        room = f"{units.format_size(need_bytes * DISK_MARGIN)} needed, {units.format_size(free)} free"
        fix = "Free some space, or choose another `model.dir`."
        raise Failed(f"not enough disk space for {folder}: {room}.", fix=fix)


MODEL_FIELDS = ("id", "commit", "files", "dir", "transfer")


class SecondModels(Module["SecondModels.Args"]):
    """Download the locked files of a server's further models (a drafter, a tokenizer), and verify each by its hash.

    Each is handled as `hf_model` handles the model, and comes from the hub.

    Returns: models (role, and what `hf_model` returns for each).

    Fails: as `hf_model`, with the role.
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
            diff=[replace(row, field=f"{role}: {row.field}") for role, result in results for row in result.diff],
            data={"models": [{"role": role, **result.data} for role, result in results]},
        )

    @staticmethod
    def _download_model(model: dict[str, Any], context: Context) -> Result:
        try:
            return HfModel().run(HfModel.Args(**{name: model[name] for name in MODEL_FIELDS}), context)
        except KeyError as error:
            raise Failed(f"the {model['role']} has no {error.args[0]}.", fix="Run `invoke lock`.") from None
