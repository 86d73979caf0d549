"""Modules that pull an image by digest, adopt one from another host, or serve one to other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.engine import EngineName, get_engine
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host import peers
from sparkwright.host.images import image_copy, image_names, registry_documents
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.images.registry_documents import RegistryDown
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.protocol.container import locked_ids
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.image_name import ImageReference

MAX_TRIES = 5
MAX_PAUSE_S = 20


@dataclass(frozen=True, slots=True)
class DockerImageState:
    """The image on this host that matches a digest."""

    #: Docker's inspection of the verified image; empty if there is none
    image: dict[str, Any]
    #: the requested platform, by default the host's own
    platform: str
    #: whether Docker resolves the digest, or the tag that records it, to this image
    is_named: bool = True
    #: Id of another image that has the tag of the digest; empty if there is none
    impostor_id: str = ""


@dataclass
class LayerProgress:
    """The progress of a pull, in bytes, summed over the layers that Docker reports separately."""

    done_by_layer: dict[str, float] = field(default_factory=dict)
    total_by_layer: dict[str, float] = field(default_factory=dict)

    def add_line(self, line: dict[str, Any]) -> bool:
        """Add one line of Docker's output. Returns True if it reports progress of a download."""
        detail, layer = line.get("progressDetail") or {}, line.get("id", "")
        if line.get("status") == "Download complete" and layer in self.total_by_layer:
            self.done_by_layer[layer] = self.total_by_layer[layer]
            return True
        if line.get("status") != "Downloading" or "current" not in detail:
            return False
        self.done_by_layer[layer] = detail["current"]
        self.total_by_layer[layer] = detail.get("total") or self.total_by_layer.get(layer, detail["current"])
        return True


class DockerImage(StateModule["DockerImage.Args", DockerImageState]):
    """Pull an image by its digest for the host's platform, unless it is already present and verified.

    An image is verified by its Id, which must be one that the lock records for the digest; if the lock has none, by the
    digest that Docker recorded when the image was pulled. A tag is never trusted. No registry is contacted for a verified
    image. An image from `docker load` or another host has lost the registry's digest: it is recognized by its Id, and tagged
    with its digest again. Before a pull, the image's platforms are read from the registry, and an image without the host's
    platform is refused. Only network errors are retried; Docker resumes in the middle of a layer.

    from: the member of a cluster that serves the image (`share_image`). No registry is contacted, and the received image is
    verified by its Id. If the copy fails for any reason, the image is pulled, and a note gives the reason.

    Returns: digest, id, engine_version (null if unknown), size_bytes.

    Fails if the registry is down, if the digest was deleted, if access is denied, if the disk is full, or if the image differs
    from the lock's. Refused if the image does not support the host's platform, such as linux/arm64.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag@sha256:digest")
        platform: str = arg("such as linux/arm64; default: the host's own", default="")
        manifests: list[dict[str, Any]] | None = arg(
            "the image's manifests in the lock, one per platform", default=None
        )
        ids: list[str] = arg("the Ids that the lock allows, if it has no manifests", default_factory=list)
        engine: EngineName = arg("the engine in the image, to read its version", default="vllm")
        mirror: str = arg("a pull-through mirror, as HOST[:PORT]; tried first", default="")
        from_: str = arg("the member of a cluster to copy the image from; empty: pull it", default="")
        offer: dict[str, Any] = arg("the offer of that member, as returned by `share_image`", default_factory=dict)

    def read(self, args: Args, context: Context) -> DockerImageState:
        platform = args.platform or machine_platform(context.machine)
        api: Any = context.docker().api
        name = ImageReference.parse_checked(args.ref)
        image = image_names.find(api, args.ref, _allowed_ids(args), platform)
        if not name.digest or (image and name.digest in image_names.digests_of(image)):
            return DockerImageState(image, platform)
        tagged_id = image_names.inspect(api, name.verified_tag).get("Id", "")
        impostor_id = tagged_id if tagged_id != image.get("Id") else ""
        return DockerImageState(image, platform, is_named=bool(tagged_id) and not impostor_id, impostor_id=impostor_id)

    def differences(self, args: Args, observed: DockerImageState) -> list[Change]:
        digest = ImageReference.parse(args.ref).digest
        if observed.image and observed.is_named:
            return []
        if observed.image:
            reason = (
                "another image has the tag of this digest" if observed.impostor_id else "docker load does not keep it"
            )
            return [Change("digest", None, digest, f"the image is present without its digest: {reason}")]
        if not observed.impostor_id:
            return [Change("image", None, args.ref, "not on the host")]
        hint = "" if _allowed_ids(args) else ": the lock has no manifests to verify it (run `invoke lock`)"
        return [Change("image", observed.impostor_id, args.ref, f"tagged with this digest, but not verified{hint}")]

    def describe(self, args: Args, observed: DockerImageState) -> dict[str, Any]:
        image = observed.image
        return {
            "digest": ImageReference.parse(args.ref).digest,
            "id": image.get("Id", ""),
            "engine_version": get_engine(args.engine).version_in_image(image.get("Config") or {}),
            "size_bytes": image.get("Size"),
            "msg": "present" if image else "",
        }

    def act(self, args: Args, observed: DockerImageState, changes: list[Change], context: Context) -> dict[str, Any]:
        api: Any = context.docker().api
        name = ImageReference.parse(args.ref)
        if observed.image:
            image_names.tag_verified(api, observed.image["Id"], name)
            return {"msg": "already present; digest restored"}
        msg = self._copy_image(args, observed.platform, context)
        msg = msg or self._pull_from_mirror_or_registry(args, name, observed.platform, context)
        image = image_names.find(api, args.ref, _allowed_ids(args), observed.platform)
        if not image:
            pulled_image = image_names.inspect(api, name.pull_reference)
            problem = "Docker has no image with this digest."
            if pulled_image:
                platform = image_names.platform_of(pulled_image)
                problem = f"Docker has {pulled_image['Id']} for {platform}, which does not match the lock."
            raise Failed(f"{args.ref} was pulled for {observed.platform}, but {problem}")
        if observed.impostor_id or (
            name.digest and image_names.inspect(api, name.pull_reference).get("Id") != image["Id"]
        ):
            image_names.tag_verified(api, image["Id"], name)
        elif name.tag:
            api.tag(image["Id"], name.repository, name.tag, force=True)
        return {**self.describe(args, DockerImageState(image, observed.platform)), "msg": msg}

    def _copy_image(self, args: Args, platform: str, context: Context) -> str:
        """Copy the image from the member that serves it. Returns a message, or "" after a failure, which is noted."""
        if not args.from_:
            return ""
        ids = _allowed_ids(args)
        try:
            image_copy.copy(context, args.ref, ids, platform, args.from_, args.offer, _locked_bytes(args, platform))
        except SparkwrightError as error:
            context.check_failures()
            registry = ImageReference.parse(args.ref).registry
            context.note(f"{args.from_}: {error.message} Pulling from {registry} instead.")
            return ""
        return f"copied from {args.from_}{'; its Id matches the lock' if ids else ''}"

    def _pull_from_mirror_or_registry(self, args: Args, name: ImageReference, platform: str, context: Context) -> str:
        """Pull the image from the mirror, or from its own registry if there is no mirror or the mirror fails."""
        if args.mirror:
            try:
                self._pull_with_retries(name.at_mirror(args.mirror), platform, context)
            except SparkwrightError as error:
                context.note(f"mirror {args.mirror}: {error.message} Trying {name.registry}.")
            else:
                return f"pulled from {args.mirror}"
        self._pull_with_retries(name, platform, context)
        return "pulled"

    def _pull_with_retries(self, name: ImageReference, platform: str, context: Context) -> None:
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        def note_retry(state: RetryCallState) -> None:
            context.note(f"{state.outcome.exception() if state.outcome else ''} Retrying.")

        retry_condition, stop_condition = retry_if_exception_type(RegistryDown), stop_after_attempt(MAX_TRIES)
        pause = wait_exponential(multiplier=0.5, max=MAX_PAUSE_S)
        retrying = Retrying(
            retry=retry_condition, stop=stop_condition, wait=pause, before_sleep=note_retry, reraise=True
        )
        retrying(self._pull, name, platform, context)

    def _pull(self, name: ImageReference, platform: str, context: Context) -> None:
        api: Any = context.docker().api
        refuse_other_platforms(query_registry(api, name)["platforms"], name.pull_reference, platform)
        with registry_documents.explain_errors(name.pull_reference):
            lines = api.pull(name.repository, tag=name.digest or name.tag, stream=True, decode=True, platform=platform)
            self._follow_pull(lines, name.pull_reference, context)

    @staticmethod
    def _follow_pull(lines: Iterator[dict[str, Any]], ref: str, context: Context) -> None:
        layers = LayerProgress()
        for line in lines:
            status = str(line.get("status", ""))
            if "error" in line:
                raise registry_documents.error_from_message(ref, str(line["error"]))
            is_download = layers.add_line(line)
            if is_download or status == "Extracting":
                text = "pulling" if is_download else "extracting"
                context.progress(
                    sum(layers.done_by_layer.values()), sum(layers.total_by_layer.values()), unit="bytes", text=text
                )
            elif status.startswith("Retrying in 5 "):
                context.note(f"download of layer {line.get('id', '')} interrupted; Docker resumes it")


def query_registry(api: Any, name: ImageReference) -> dict[str, Any]:
    """Query an image's digest and platforms from its registry through Docker, whose errors are converted to readable ones."""
    with registry_documents.explain_errors(name.pull_reference):
        answer = api.inspect_distribution(name.pull_reference)
        return registry_documents.parse_distribution(answer, f"the registry's answer about {name.pull_reference}")


def refuse_other_platforms(platforms: list[str], ref: str, platform: str) -> None:
    """Raise Refused if the image has only other platforms: Docker may pull one of them without an error."""
    if platforms and platform not in platforms:
        fix = "Use a tag with this platform."
        raise Refused(f"{ref} is not available for {platform}, only for {', '.join(platforms)}.", fix=fix)


def _allowed_ids(args: DockerImage.Args) -> tuple[str, ...]:
    return (*args.ids, *locked_ids({"manifests": args.manifests}))


def _locked_bytes(args: DockerImage.Args, platform: str) -> int | None:
    """Return the download size of the image for this platform, from the lock; None if the lock does not have the platform."""
    sizes = (int(manifest["size_bytes"]) for manifest in args.manifests or () if manifest["platform"] == platform)
    return next(sizes, None)


class AdoptImage(Module["AdoptImage.Args"]):
    """Verify an image that another host sent, and tag it with its names and its digest.

    The image is identified by its Id, if the lock has Ids for it. Otherwise it must have the layers and the platform that
    the sending host reported. All other loaded images are removed, and moved tags are restored; images that other
    programs pulled, tagged or built in the meantime are kept.

    Returns: id, undone (other changes of the load that were undone, one sentence each). Fails, and removes the image, if it
    is not the expected one.
    """

    @dataclass(frozen=True)
    class Args:
        incoming: str = arg("the temporary tag under which it arrived")
        ref: str = arg("the expected image, as repository:tag[@sha256:digest]")
        layers: list[str] = arg("the hashes of its layers on the sending host")
        platform: str = arg("such as linux/arm64")
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        before: dict[str, Any] | None = arg(
            "the image names before the load, as returned by `inspect_image`", default=None
        )

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = ImageReference.parse_checked(args.ref)
        undone = image_copy.undo_load(api, image_copy.ImageNames(**args.before), args.incoming) if args.before else []
        for message in undone:
            context.note(message)
        image = image_names.inspect(api, args.incoming)
        if not image:
            raise Failed("no image was received.", fix="Run the command again.")
        reason = _explain_mismatch(args, name, image)
        if reason:
            image_names.remove_name(api, args.incoming, image["Id"])
            raise Failed(f"the received image is not {args.ref}: {reason}; removed it.")
        if name.digest:
            image_names.tag_verified(api, image["Id"], name)
        else:
            api.tag(image["Id"], name.repository, name.tag or "latest", force=True)
        image_names.remove_name(api, args.incoming, image["Id"])
        verification = "its Id matches the lock" if args.ids else "its layers match the sending host's"
        return Result(msg=verification, changed=True, data={"id": image["Id"], "undone": undone})


def _explain_mismatch(args: AdoptImage.Args, name: ImageReference, image: dict[str, Any]) -> str:
    """Return why the received image is not the requested one, or "" if it is."""
    platform = image_names.platform_of(image)
    if platform != args.platform:
        return f"it is for {platform}, not {args.platform}"
    if args.ids and not image_names.has_digest(image, name.digest, args.ids):
        return f"its Id is {image['Id']}, the lock has {', '.join(args.ids)}"
    has_same_layers = (image.get("RootFS") or {}).get("Layers") == args.layers
    return "" if has_same_layers else f"the layers of {image['Id']} differ"


class ShareImage(Module["ShareImage.Args"]):
    """Serve a verified image to the other members of a cluster, for one copy each, over HTTP with a token.

    The server ends when all readers are done, or two minutes after the last request.

    Returns: offer (urls, size_bytes, containerd: whether Docker uses containerd's image store).

    Fails if there is no verified image on the host, or too little disk space to export it.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag@sha256:digest")
        bind: str = arg("the address to listen on")
        interfaces: list[str] = arg(
            "the fabric's interfaces; the server listens on their other addresses too", default_factory=list
        )
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        readers: int = arg("number of hosts that will copy it", default=1)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        token = peers.find_token(context.secrets, image_copy.COPY_PURPOSE)
        if token is None:
            raise Failed("no token to serve the image: only the members of a cluster have one.")
        image = image_names.find(api, args.ref, args.ids, machine_platform(context.machine))
        if not image:
            raise Failed(f"{args.ref} is not on this host.")
        if context.check:
            return Result(msg="present")
        info = api.info()
        self._check_export_space(context, info, image, args.readers)

        def serve_copy(bind_address: str) -> int:
            return image_copy.start_server(context.machine, image["Id"], token, args.readers, bind_address)

        urls = peers.serve_on_each(args.bind, args.interfaces, serve_copy, context.note)
        offer = {
            "urls": urls,
            "size_bytes": int(image.get("Size") or 0),
            "containerd": image_copy.has_containerd_store(info),
        }
        return Result(msg=f"serving {args.ref} on {peers.format_urls(urls)}", data={"offer": offer})

    @staticmethod
    def _check_export_space(context: Context, info: dict[str, Any], image: dict[str, Any], readers: int) -> None:
        """Raise Failed if the disk is too small: with overlay2, Docker writes the whole image to disk for each reader."""
        free_bytes = image_copy.free_bytes(context.machine, info)
        needed_bytes = int(image.get("Size") or 0) * min(readers, image_copy.MAX_CONCURRENT_EXPORTS)
        if free_bytes is not None and free_bytes < needed_bytes and not image_copy.has_containerd_store(info):
            space = f"{needed_bytes / 2**30:.1f} GiB needed, {free_bytes / 2**30:.1f} GiB free"
            raise Failed(f"not enough disk space to export the image: {space}.")


class UndoLoad(Module["UndoLoad.Args"]):
    """Undo a failed `docker load`: remove the loaded images, and restore the tags that moved to them.

    Images that other programs pulled, tagged or built in the meantime are kept.

    Returns: undone (one sentence for each change).
    """

    @dataclass(frozen=True)
    class Args:
        before: dict[str, Any] = arg("the image names before the load, as returned by `inspect_image`")

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        undone = image_copy.undo_load(api, image_copy.ImageNames(**args.before))
        return Result(msg="; ".join(undone), changed=bool(undone), data={"undone": undone})
