"""The `hf_model` module."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.modules import hub
from sparkwright.modules.base import Change, Context, StateModule, arg
from sparkwright.modules.whole import Manifest

WORKERS = 8
TRIES = 4
POLL_S = 0.1
MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class Found:
    """missing: paths that are not there or not right."""

    missing: list[str]
    manifest: Manifest


class HfModel(StateModule["HfModel.Args", Found]):
    """The model's folder holds exactly the locked files, each proved by its hash.

    Files that were proved before cost a stat each. A file that is missing, truncated or wrong is named and fetched, alone;
    one that is there is replaced in one step when the new one is whole, so a server that reads it is not disturbed. Room is
    checked first (+5 %). Broken transfers are tried again. With every file whole the hub is not asked at all.

    transfer: `hf_transfer` reads a file in parallel ranges (where connections are throttled); `plain` fetches files in
    parallel (fast mirrors); `xet`; `auto` is hf_transfer.

    Returns: dir, commit, size_bytes, fetched (paths).

    Fails: gated (says where to accept the licence), hub down, disk full, no permission, a file wrong twice.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        transfer: Literal["auto", "hf_transfer", "plain", "xet"] = arg("how files are fetched", default="auto")
        token_secret: str = arg("the secret that holds the hub's token", default="HF_TOKEN")

    def read(self, args: Args, context: Context) -> Found:
        manifest = Manifest.of(context.state, context.machine.expand(args.dir))
        missing = manifest.prove(args.files)
        if not context.check and not missing:
            manifest.save()
        return Found(missing, manifest)

    def differences(self, args: Args, found: Found) -> list[Change]:
        sizes = {file["path"]: file["size_bytes"] for file in args.files}
        here = found.manifest.folder
        return [
            Change(path, "wrong" if (here / path).exists() else None, f"{sizes[path]} bytes", "not as the lock has it")
            for path in found.missing
        ]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        size = sum(file["size_bytes"] for file in args.files)
        whole = f"{len(args.files)} files, {size / 1e9:.2f} GB, all hashes right"
        return {
            "dir": str(found.manifest.folder),
            "commit": args.commit,
            "size_bytes": size,
            "fetched": [],
            "msg": "" if found.missing else whole,
        }

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        folder, missing = found.manifest.folder, found.missing
        files = {file["path"]: file for file in args.files}
        self._make_room(folder, sum(files[path]["size_bytes"] for path in missing), context)
        hub.remove_leftovers(folder)
        self._fetch(args, missing, files, folder, context)
        wrong = found.manifest.prove(args.files)
        if wrong:
            context.note(f"wrong after the download, fetching again: {', '.join(wrong)}")
            self._fetch(args, wrong, files, folder, context)
            wrong = found.manifest.prove(args.files)
        found.manifest.save()
        if wrong:
            fix = "The hub hands out other bytes than it promises; try `transfer: plain`, or another HF_ENDPOINT."
            raise Failed(f"wrong bytes twice: {', '.join(wrong)}.", fix=fix)
        size = sum(files[path]["size_bytes"] for path in missing)
        return {"fetched": missing, "msg": f"{len(missing)} files fetched, {size / 1e9:.2f} GB; all hashes right"}

    @staticmethod
    def _make_room(folder: Path, need_bytes: int, context: Context) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except PermissionError:
            fix = "Make it as root and give it to this user, or choose another `model.dir`."
            raise Failed(f"no permission to make {folder}.", fix=fix) from None
        free = context.machine.free_bytes(folder)
        if need_bytes * MARGIN > free:
            said = f"the disk of {folder} is full: {need_bytes * MARGIN / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free."
            raise Failed(said, fix="Free some, or give the recipe another `model.dir`.")

    def _fetch(
        self, args: Args, paths: list[str], files: Mapping[str, Mapping[str, Any]], folder: Path, context: Context
    ) -> None:
        """Fetch files, largest first, and say how many bytes are really on the disk meanwhile."""
        mode = "hf_transfer" if args.transfer == "auto" else args.transfer
        total = sum(files[path]["size_bytes"] for path in paths)
        before = _on_disk(folder)
        ordered = sorted(paths, key=lambda path: -int(files[path]["size_bytes"]))
        with ThreadPoolExecutor(max_workers=1 if mode == "hf_transfer" else WORKERS) as pool:
            jobs = [pool.submit(self._one, args, path, folder, mode, context) for path in ordered]
            while wait(jobs, timeout=POLL_S).not_done:
                done = sum(_failed(job) is not None for job in jobs)
                if done:
                    pool.shutdown(cancel_futures=True)
                    break
                context.progress(
                    min(max(0, _on_disk(folder) - before), total), total, unit="bytes", text=f"{args.id} ({mode})"
                )
        context.progress(total, total, unit="bytes", text=args.id)
        for job in jobs:
            error = None if job.cancelled() else _failed(job)
            if error is not None:
                hub.remove_leftovers(folder)
                raise error

    @staticmethod
    def _one(args: Args, path: str, folder: Path, mode: str, context: Context) -> None:
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        token = context.secrets.get(args.token_secret)
        tries = Retrying(
            retry=retry_if_exception_type(hub.HubDown),
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(multiplier=0.3, max=20),
            before_sleep=lambda state: context.note(
                f"{path}: {state.outcome.exception() if state.outcome else ''} Trying again."
            ),
            reraise=True,
        )
        tries(hub.fetch, context.machine, args.id, args.commit, path, folder, mode, token)


def _failed(job: Future[None]) -> BaseException | None:
    return job.exception() if job.done() and not job.cancelled() else None


def _on_disk(folder: Path) -> int:
    """Bytes that are really written: a transfer in ranges makes sparse files, so their size says nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total
