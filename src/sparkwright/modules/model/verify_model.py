from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.model_files import checked
from sparkwright.visible import count, first


class VerifyModel(Module["VerifyModel.Args"]):
    """Check that a folder holds exactly the locked files. Asks no hub, fetches and changes nothing.

    What was proved before and has not changed since costs a stat. deep: every byte is read and hashed again, which finds what
    a disk has changed behind everybody's back; what was read is not left in the page cache.

    Returns: dir, wrong (paths that are missing or not right), files, size_bytes.
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        deep: bool = arg("hash again even if already verified", default=False)
        models: list[dict[str, Any]] = arg(
            "further models of the server: role, id, commit, files and dir of each", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        own = {"id": args.id, "commit": args.commit, "files": args.files, "dir": args.dir}
        manifests = [_proved(model, context, deep=args.deep) for model in (own, *args.models)]
        wrong = [path for _, found in manifests for path in found]
        files = [file for model in (own, *args.models) for file in model["files"]]
        size = sum(file["size_bytes"] for file in files)
        how = "read again" if args.deep else "as verified before"
        summary = f"{count(len(files), 'file')}, {units.size(size)}, {how}"
        msg = f"missing or wrong: {first(wrong, 3)}" if wrong else summary
        data = {"dir": str(manifests[0][0].folder), "wrong": wrong, "files": len(files), "size_bytes": size}
        return Result(msg=msg, data=data)


def _proved(model: Mapping[str, Any], context: Context, *, deep: bool) -> tuple[Manifest, list[str]]:
    """Return a model's manifest, and its missing or wrong files; those of a further model are prefixed with its role."""
    files = model["files"]
    checked(files, f"the list of files of {model['id']}")
    manifest = Manifest.of(context.state, context.machine.expand(model["dir"]))
    wrong = manifest.prove(files, deep=deep)
    if not wrong:
        about = {"id": model["id"], "commit": model["commit"], "paths": [file["path"] for file in files]}
        manifest.about = about
        wrong = manifest.unnamed(files)
    if manifest.rows:
        manifest.save()
    role = f"{model['role']}: " if model.get("role") else ""
    return manifest, [f"{role}{path}" for path in wrong]
