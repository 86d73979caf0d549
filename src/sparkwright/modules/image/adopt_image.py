from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.images import image_names, loads
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.image_name import Name


class AdoptImage(Module["AdoptImage.Args"]):
    """An image that another host sent is the one that was asked for; then it gets its names, its digest among them.

    What proves it is its Id, when the lock holds Ids for it. Else it is what the sending host has, by that host's word: the
    hashes of all its layers, and the platform. Whatever else the load brought is removed, and names that it took are given
    back; what others pulled, tagged or built meanwhile stays.

    Returns: id, undone (what else the load had done, a sentence each). Fails, and removes what arrived, when it is something
    else.
    """

    @dataclass(frozen=True)
    class Args:
        incoming: str = arg("the tag under which it arrived; removed again")
        ref: str = arg("repository:tag[@sha256:digest] that it must be")
        layers: list[str] = arg("the hashes of its layers on the host it came from")
        platform: str = arg("as linux/arm64")
        ids: list[str] = arg("the Ids that the lock allows for the digest; one must be its own", default_factory=list)
        before: dict[str, Any] | None = arg("the names before the load, as `inspect_image` returns them", default=None)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = Name.given(args.ref)
        undone = loads.undo(api, loads.Names(**args.before), args.incoming) if args.before else []
        for sentence in undone:
            context.note(sentence)
        image = image_names.inspect(api, args.incoming)
        if not image:
            raise Failed("no image arrived.", fix="Run the command again.")
        reason = _why_another(args, name, image)
        if reason:
            image_names.remove_name(api, args.incoming, image["Id"])
            raise Failed(f"the image that arrived is not {args.ref}: {reason}; removed it.")
        if name.digest:
            image_names.name_by_digest(api, image["Id"], name)
        else:
            api.tag(image["Id"], name.repository, name.tag or "latest", force=True)
        image_names.remove_name(api, args.incoming, image["Id"])
        how = "its Id is the lock's" if args.ids else "the same, layer by layer"
        return Result(msg=how, changed=True, data={"id": image["Id"], "undone": undone})


def _why_another(args: AdoptImage.Args, name: Name, image: dict[str, Any]) -> str:
    """Return why the image that arrived is not the requested one; empty if it is."""
    has = image_names.platform_of(image)
    if has != args.platform:
        return f"it is for {has}, not {args.platform}"
    if args.ids and not image_names.proves(image, name.digest, args.ids):
        return f"its Id is {image['Id']}, the lock has {', '.join(args.ids)}"
    same = (image.get("RootFS") or {}).get("Layers") == args.layers
    return "" if same else f"the layers of {image['Id']} differ"
