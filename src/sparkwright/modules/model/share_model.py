from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.models import peer
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module
from sparkwright.host.peers import peer_server
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.model_files import checked
from sparkwright.visible import first


class ShareModel(Module["ShareModel.Args"]):
    """Hand a model that was proved here to other hosts, for one copy: over HTTP on this host's own addresses, with a token.

    The process ends when all readers are done, or two minutes after the last question. `invoke models.copy` uses it,
    `hf_model: {from: HOST}`, and the member of a cluster that has the model, for those that lack it.

    Returns: urls (the fastest link first), dir, size_bytes.

    Fails: the model is not here as the lock has it (names what is missing).
    """

    @dataclass(frozen=True)
    class Args:
        id: str = arg("the model's name on the hub")
        commit: str = arg("the commit, 40 hex digits")
        files: list[dict[str, Any]] = arg("path, size_bytes, sha256 or blob_id of each, from the lock")
        dir: str = arg("the folder; ~ is the user's home")
        readers: int = arg("how many hosts will copy it", default=1)
        bind: str = arg("the address to listen on; empty: all of this host's", default="")
        interfaces: list[str] = arg(
            "with bind: the interfaces of the fabric, whose other addresses serve it, too", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        checked(args.files, f"the list of files of {args.id}")
        token = peer.token(context.secrets)
        if token is None:
            raise Failed(f"no token to serve {args.id} with.", fix="Use `invoke models.copy`.")
        size = sum(file["size_bytes"] for file in args.files)
        manifest, missing = self._complete(args, context)
        if missing:
            fix = "Deploy that host first, or copy from another."
            raise Failed(f"{args.id} is incomplete in {manifest.folder}: {first(missing, 3)}.", fix=fix)
        manifest.save()
        if context.check:
            return Result(msg=f"{args.id} is complete in {manifest.folder}")
        here = (args.id, args.commit)

        def hand_out(bind: str) -> int:
            return peer.hand_out(context.machine, manifest.folder, here, args.files, token, args.readers, bind)

        where = ""
        if args.bind:
            urls = peer_server.on_each(args.bind, args.interfaces, hand_out, context.note)
            where = f" on {peer_server.shown(urls)}"
        else:
            port = hand_out("")
            urls = [f"http://{address}:{port}" for address in peer_server.addresses()]
        data = {"urls": urls, "dir": str(manifest.folder), "size_bytes": size}
        return Result(msg=f"serving {args.id} from {manifest.folder}{where}", data=data)

    @staticmethod
    def _complete(args: Args, context: Context) -> tuple[Manifest, list[str]]:
        """Return the folder that holds the whole model, and its missing files: the named one, or another with this commit."""
        here = Manifest.of(context.state, context.machine.expand(args.dir))
        missing = here.prove(args.files)
        if missing:
            for other in Manifest.all(context.state):
                same = (other.about.get("id"), other.commit) == (args.id, args.commit)
                if same and all(other.knows(file) for file in args.files):
                    return other, []
        return here, missing
