"""The `lock_model` module."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from sparkwright.engine.architecture import essence
from sparkwright.modules import hub
from sparkwright.modules.base import Context, Module, Result, arg


class LockModel(Module["LockModel.Args"]):
    """Ask the hub what a branch means now: its commit and its files with their hashes. Downloads nothing.

    Returns: commit, config (what tells the model's kind, of its config.json), files (path, size_bytes, sha256, blob_id).

    Fails: no such model or revision, gated (says where to accept the licence), hub down.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        revision: str = arg("branch, tag or commit", default="main")
        allow: list[str] = arg("only files that match one of these patterns", default_factory=list)
        ignore: list[str] = arg("no files that match one of these patterns", default_factory=list)
        token_secret: str = arg("the secret that holds the hub's token", default="HF_TOKEN")

    def run(self, args: Args, context: Context) -> Result:
        found = hub.entry(context.machine, args.id, args.revision, context.secrets.get(args.token_secret))
        files = [one for one in found["files"] if _chosen(one["path"], args.allow, args.ignore)]
        total = sum(one["size_bytes"] for one in files)
        msg = f"commit {found['commit'][:12]}, {len(files)} files, {total / 1e9:.2f} GB"
        token = context.secrets.get(args.token_secret)
        config = hub.config(context.machine, args.id, found["commit"], token) if _has_config(files) else None
        return Result(msg=msg, data={"commit": found["commit"], "config": config and essence(config), "files": files})


def _has_config(files: list[dict[str, Any]]) -> bool:
    return any(one["path"] == hub.CONFIG for one in files)


def _chosen(path: str, allow: list[str], ignore: list[str]) -> bool:
    allowed = not allow or any(fnmatch.fnmatch(path, pattern) for pattern in allow)
    return allowed and not any(fnmatch.fnmatch(path, pattern) for pattern in ignore)
