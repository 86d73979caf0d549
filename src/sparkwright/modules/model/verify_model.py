from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.model_files import checked
from sparkwright.visible import count, first


class VerifyModel(Module["VerifyModel.Args"]):
    """Whether a folder holds exactly the locked files. Asks no hub, fetches and changes nothing.

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

    def run(self, args: Args, context: Context) -> Result:
        checked(args.files, f"the list of files of {args.id}")
        manifest = Manifest.of(context.state, context.machine.expand(args.dir))
        wrong = manifest.prove(args.files, deep=args.deep)
        if not wrong:
            manifest.about = {"id": args.id, "commit": args.commit, "paths": [file["path"] for file in args.files]}
            wrong = manifest.unnamed(args.files)
        if manifest.rows:
            manifest.save()
        size = sum(file["size_bytes"] for file in args.files)
        how = "read again" if args.deep else "as verified before"
        summary = f"{count(len(args.files), 'file')}, {units.size(size)}, {how}"
        msg = f"missing or wrong: {first(wrong, 3)}" if wrong else summary
        data = {"dir": str(manifest.folder), "wrong": wrong, "files": len(args.files), "size_bytes": size}
        return Result(msg=msg, data=data)
