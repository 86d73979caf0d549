from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.models import peer
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.model_files import checked
from sparkwright.visible import count, first


class ModelForMembers(Module["ModelForMembers.Args"]):
    """Serve this host's model to members of its cluster that lack it, on its fabric address, with a token of this run.

    They copy it with `hf_model: {from: ..., peer: ...}`. The process ends when all have done so, or two minutes after the last
    question.

    Returns: port (0 in a plan that is of no cluster).

    Fails: the model is not here as the lock has it (names what is missing).
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        bind: str = arg("this host's own address on the fabric")
        readers: int = arg("how many members lack it")

    def run(self, args: Args, context: Context) -> Result:
        checked(args.files, f"the list of files of {args.id}")
        token = peer.token(context.secrets)
        if context.check or context.cluster is None or token is None:
            why = "check mode" if context.check else "this plan is of no cluster"
            return Result(skipped=True, msg=why, data={"port": 0})
        manifest = Manifest.of(context.state, context.machine.expand(args.dir))
        if missing := manifest.prove(args.files):
            raise Failed(f"{args.id} is incomplete in {manifest.folder}: {first(missing, 3)}.")
        here = (args.id, args.commit)
        port = peer.hand_out(context.machine, manifest.folder, here, args.files, token, args.readers, args.bind)
        return Result(
            msg=f"serving {args.id} to {count(args.readers, 'member')} on {args.bind}:{port}", data={"port": port}
        )
