"""The `adopt_image` module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.images.image_names import Name, name_by_digest
from sparkwright.modules.base import Context, Module, Result, arg


class AdoptImage(Module["AdoptImage.Args"]):
    """An image that another host sent is what that host has; then it gets its names, its digest among them.

    Compared by the hashes of all its layers' content and by platform, and by the hash over its whole config where both
    engines name images by that.

    Returns: id. Fails, and removes what arrived, when it is something else.
    """

    @dataclass(frozen=True)
    class Args:
        incoming: str = arg("the tag under which it arrived; removed again")
        ref: str = arg("repository:tag[@sha256:digest] that it must be")
        id: str = arg("its Id on the host it came from")
        layers: list[str] = arg("the hashes of its layers there")
        platform: str = arg("as linux/arm64")
        contents: list[str] = arg(
            "digests of config and manifest in the lock; one must be its Id, if given", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        from docker.errors import ImageNotFound

        api: Any = context.docker().api
        try:
            image = api.inspect_image(args.incoming)
        except ImageNotFound:
            raise Failed("nothing arrived.", fix="Give the command again.") from None
        has = f"{image.get('Os', 'linux')}/{image['Architecture']}"
        same = (image["RootFS"].get("Layers") or []) == args.layers and has == args.platform
        store = api.info().get("DriverStatus") or []
        by_config = not any("io.containerd" in str(value) for row in store for value in row)
        if not same or (by_config and args.contents and image["Id"] not in args.contents):
            api.remove_image(args.incoming)
            raise Failed(f"what arrived is not {args.ref}: {image['Id']}, {has}. It is removed.")
        name = Name.parse(args.ref)
        if name.digest:
            name_by_digest(api, args.incoming, name)
        else:
            api.tag(args.incoming, name.repository, name.tag or "latest", force=True)
        api.remove_image(args.incoming)
        return Result(msg="the same, layer by layer", changed=True, data={"id": image["Id"]})
