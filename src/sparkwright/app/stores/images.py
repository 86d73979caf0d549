"""The `images.prune` and `images.copy` commands: remove images from hosts after confirmation, or copy them between hosts."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparkwright import units
from sparkwright.app.clean_host import PrunableItems
from sparkwright.app.connect import Selection, select_hosts
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import load_lock
from sparkwright.app.queries.host_requests import act_on_each, query_module, run_module
from sparkwright.app.runs.presenters import RunOutput
from sparkwright.console import grid
from sparkwright.console.command_output import print_text
from sparkwright.errors import Exit, Failed, Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.host.images import image_archive
from sparkwright.project import recipe
from sparkwright.protocol.container import locked_ids
from sparkwright.protocol.events import event
from sparkwright.remote.relay import relay
from sparkwright.remote.ssh import ssh_config
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.secret import Secret
from sparkwright.trust.image_name import ImageReference, with_digest

COLUMNS = grid.columns(("HOST", 0), ("STATE", 0), ("FREES", 1), ("IMAGE", 0), ("WHY", 0))
#: name of the secret with the private key for a copy
COPY_KEY_SECRET = "SPARKWRIGHT_COPY_KEY"
#: free space that a copy needs, relative to the size of the image
FREE_SPACE_FACTOR = 1.05
#: arguments: image, incoming tag, pack command. sh has no pipefail, so the exit code bypasses the pipe.
SAVE_SCRIPT = (
    'docker tag "$1" "$2" || exit 1; '
    'exec 3>&1; code=$( { { docker save "$2"; echo $? >&4; } | $3 >&3; } 4>&1 ); '
    'docker rmi --no-prune "$2" >/dev/null; exit "$code"'
)


@dataclass(frozen=True)
class ImageToCopy:
    """An image reference, with what the lock records about the image."""

    #: image reference, with the digest if it is known
    ref: str
    #: image ids that belong to the digest according to the lock; empty if the image is not in the lock
    ids: tuple[str, ...] = ()
    #: download size in bytes, by platform
    size_by_platform: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the image as module arguments."""
        return {"ref": self.ref, "ids": list(self.ids)}


@dataclass(frozen=True)
class ImageTransfer:
    """The transfer of one image between two hosts."""

    fleet: Fleet
    source: Member
    target: Member
    #: answer from `inspect_image` on the source
    source_image: dict[str, Any]
    #: answer from `inspect_image` on the target
    target_image: dict[str, Any]
    #: the image's tag on the target until it has been compared
    temporary_tag: str
    #: compression program that both hosts have
    compressor: str


def prune(selection: Selection, *, everything: bool, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused images of each host, ask for confirmation, and remove them.

    Args:
        everything: include images of repositories that no recipe names.
        check: only show them.
    """
    prunable_images = PrunableItems("images", "prune_images", "id", _print_images)

    def prune_host(member: Member) -> Exit:
        args = _prune_args(selection, member, everything=everything)
        return prunable_images.prune(selection, member, args, check, yes, json)

    return act_on_each(selection, prune_host, json=json)


def _prune_args(selection: Selection, member: Member, *, everything: bool) -> dict[str, Any]:
    """Return the arguments of `prune_images`: the repositories to prune, empty for all, and the pinned images to keep."""
    root: Path = selection.project.root
    lock = load_lock(selection.project, member.host)
    refs = {recipe.load(root, name).image for name in recipe.names(root)} | set(lock.images)
    pinned_images = {with_digest(ref, entry["digest"]): list(locked_ids(entry)) for ref, entry in lock.images.items()}
    repositories = set() if everything else {ImageReference.parse(ref).repository for ref in refs}
    return {"repositories": sorted(repositories), "pinned": pinned_images}


def _print_images(host: str, images: list[dict[str, Any]]) -> None:
    names = [row["names"][0] if row["names"] else row["id"][7:19] for row in images]
    rows = [
        (host, "keep" if row["kept"] else "free", units.format_size(row["frees_bytes"]), name, row["kept"])
        for row, name in zip(images, names, strict=True)
    ]
    grid.print_table(COLUMNS, rows)


def copy(source_name: str, target_pattern: str, image: str, *, json: bool) -> list[Exit]:
    """Copy an image from one host to others over ssh.

    Args:
        image: the image; if empty, the one in the receiving host's recipe.
    """
    selection = select_hosts(f"{source_name},{target_pattern}")
    sources = selection.inventory.machines_of(selection.inventory.match(source_name))
    if len(sources) != 1:
        raise Refused(f"--from {source_name} names {len(sources)} hosts.", fix="Name one host.")
    local_hosts = [host.name for host in selection.hosts if host.connection != "ssh"]
    if local_hosts:
        raise Refused(f"{', '.join(local_hosts)}: images can only be copied between hosts that are reached over ssh.")
    source = next(member for member in selection.fleet.members if member.host.machine == sources[0].name)
    targets = [member for member in selection.fleet.members if member.host.machine != sources[0].name]
    if not targets:
        raise Refused(f"--to {target_pattern} names no host except {source_name}.")
    selection.fleet.connect()
    return _copy_to_targets(selection, source, targets, image, json=json)


def _copy_to_targets(
    selection: Selection, source: Member, targets: list[Member], image: str, *, json: bool
) -> list[Exit]:
    RunOutput(selection, json=json, diff=False)
    messages, codes = list[str](), list[Exit]()

    def copy_to(member: Member) -> None:
        try:
            messages.append(copy_between_members(selection, source, member, image))
        except SparkwrightError as error:
            name = member.host.name
            error.where = error.where or name
            messages.append(str(error) if error.where == name else f"{name}: {error}")
            codes.append(error.exit)

    try:
        for member in targets:  # in sequence, because they would share the source's network and its Docker Engine
            selection.fleet.run_parallel([member], copy_to)
    finally:
        selection.fleet.close()
    for message in messages:
        print_text(message, file=sys.stderr if json else sys.stdout)
    return codes


def copy_between_members(selection: Selection, source: Member, target: Member, image: str) -> str:
    """Copy an image between two members, and return a message about the outcome.

    Args:
        image: the image; if empty, the one in the target's recipe.

    Raises:
        Refused: the source does not have the image, or the target can't use it. Nothing was sent.
    """
    fleet, image_to_copy = selection.fleet, _resolve_image(selection, target, image)
    source_image = query_module(fleet, source, "inspect_image", image_to_copy.to_json())
    if not source_image["present"]:
        other_image = (
            f", only a different image with the same name ({source_image['impostor'][7:19]})"
            if source_image["impostor"]
            else ""
        )
        fix = "Deploy it there first, or name one with --image."
        raise Refused(f"{source.host.name} has no {image_to_copy.ref}{other_image}.", fix=fix)
    if not ImageReference.parse(image_to_copy.ref).digest and source_image["digests"]:
        image_to_copy = replace(image_to_copy, ref=with_digest(image_to_copy.ref, source_image["digests"][0]))
    # limited by the size in the lock, because the source may report any size
    max_bytes = image_archive.max_unpacked_bytes(
        source_image["size_bytes"], image_to_copy.size_by_platform.get(source_image["platform"])
    )
    target_image = query_module(fleet, target, "inspect_image", {**image_to_copy.to_json(), "most_bytes": max_bytes})
    if target_image["present"] and target_image["layers"] == source_image["layers"]:
        return f"{target.host.name}: already has {image_to_copy.ref}."
    # a temporary tag, because nothing may use the image until it has been compared
    incoming_tag = f"{ImageReference.parse(image_to_copy.ref).repository}:incoming-{secrets.token_hex(6)}"
    compressor = image_archive.select_compressor(source_image["tools"], target_image["tools"])
    transfer = ImageTransfer(fleet, source, target, source_image, target_image, incoming_tag, compressor)
    _check_transfer_possible(image_to_copy, transfer)
    started_s = time.monotonic()
    try:
        route = _transfer(transfer)
    except BaseException:
        with suppress(SparkwrightError):  # the copy's error is the one to report
            run_module(fleet, target, "undo_load", {"before": target_image["names"]}, exclusive=True)
        raise
    expected = {"layers": source_image["layers"], "platform": source_image["platform"], "before": target_image["names"]}
    run_module(
        fleet, target, "adopt_image", {**image_to_copy.to_json(), "incoming": incoming_tag, **expected}, exclusive=True
    )
    duration = units.format_duration(time.monotonic() - started_s)
    size = units.format_size(source_image["size_bytes"])
    comparison = (
        "its content matches spark.lock"
        if image_to_copy.ids
        else f"it is not in spark.lock, but identical to the image on {source.host.name}"
    )
    return f"{target.host.name}: now has {image_to_copy.ref}; {comparison} ({size}, {duration}, {route}, {compressor})."


def _transfer(transfer: ImageTransfer) -> str:
    """Transfer the image, directly if possible, and return a description of the route."""
    try:
        return _transfer_directly(transfer)
    except SparkwrightError as error:
        if error.exit is not Exit.UNREACHABLE:
            raise
        transfer.fleet.add_note(transfer.target, f"{error.message} Copying through this laptop instead.")
        return _relay_image(transfer)


def _resolve_image(selection: Selection, target: Member, image: str) -> ImageToCopy:
    if not image:
        image = recipes.load_host_recipe(selection.project, target.host).image
    name = ImageReference.parse_checked(image)
    entry = load_lock(selection.project, target.host).image(name.by_tag)
    if entry is None or (name.digest and name.digest != entry["digest"]):
        return ImageToCopy(image)
    size_by_platform = {manifest["platform"]: manifest["size_bytes"] for manifest in entry.get("manifests") or ()}
    return ImageToCopy(with_digest(name.by_tag, entry["digest"]), locked_ids(entry), size_by_platform)


def _check_transfer_possible(image: ImageToCopy, transfer: ImageTransfer) -> None:
    source_image, target_image = transfer.source_image, transfer.target_image
    source, target = transfer.source, transfer.target
    if source_image["platform"] != target_image["host_platform"]:
        description = f"{source.host.name} has {image.ref} for {source_image['platform']}"
        message = f"{description}, {target.host.name} needs {target_image['host_platform']}."
        raise Refused(message, fix="Copy it from a host with the same platform.")
    needed_bytes = int(source_image["size_bytes"] * FREE_SPACE_FACTOR)
    if target_image["free_bytes"] is not None and target_image["free_bytes"] < needed_bytes:
        free_text = units.format_size(target_image["free_bytes"])
        message = (
            f"only {free_text} is free where Docker stores images, but {units.format_size(needed_bytes)} is needed."
        )
        raise Refused(message, where=target.host.name, fix=f"`invoke images.prune --host {target.host.name}`.")
    for member, inspection in ((source, source_image), (target, target_image)):
        if "docker" not in inspection["tools"]:
            raise Refused("the docker command is missing.", where=member.host.name, fix="Install docker-ce-cli.")


def _transfer_directly(transfer: ImageTransfer) -> str:
    """Transfer the image from host to host. Raises an error with Exit.UNREACHABLE if they can't reach each other."""
    fleet, target, link = transfer.fleet, transfer.target, transfer.target.open()
    if not isinstance(link, SshLink):
        raise Refused(f"{target.host.name} is not reached over ssh.", fix="On this machine: `docker pull`.")
    private_key, public_key = _generate_key_pair()
    key_arguments = {
        "public_key": public_key,
        "command": image_archive.build_load_command(transfer.compressor, transfer.target_image["intake"]),
    }
    args = {
        "image": transfer.source_image["id"],
        "incoming": transfer.temporary_tag,
        "size_bytes": transfer.source_image["size_bytes"],
        "addresses": _reachable_addresses(target, transfer.target_image["addresses"]),
        "user": ssh_config.resolve(target.host).user,
        "host_key": link.host_key(),
        "packer": transfer.compressor,
    }
    run_module(fleet, target, "copy_key", key_arguments)
    try:
        with _attach_copy_key(transfer.source, private_key):
            answer = run_module(fleet, transfer.source, "send_image", args)
    finally:
        run_module(fleet, target, "copy_key", {**key_arguments, "state": "absent"})
    return f"straight to {answer['address']}"


def _reachable_addresses(target: Member, target_addresses: list[str]) -> list[str]:
    """Return the addresses to try for the target's sshd: those on its networks, then the laptop's, unless it is loopback."""
    ssh_settings = ssh_config.resolve(target.host)
    ports = dict.fromkeys([22, ssh_settings.port])
    addresses = [f"{address}:{port}" for address in target_addresses for port in ports]
    if ssh_settings.jump or ssh_settings.hostname in ("localhost", "::1") or ssh_settings.hostname.startswith("127."):
        return addresses
    return list(dict.fromkeys([*addresses, f"{ssh_settings.hostname}:{ssh_settings.port}"]))


def _generate_key_pair() -> tuple[Secret, str]:
    key = Ed25519PrivateKey.generate()
    private_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public_key = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Secret(private_key.decode()), public_key.decode()


@contextmanager
def _attach_copy_key(member: Member, key: Secret) -> Iterator[None]:
    """Send the private key along with the member's requests in this context."""
    original_secrets = dict(member.secrets)
    member.secrets = {**original_secrets, COPY_KEY_SECRET: key}
    try:
        yield
    finally:
        member.secrets = original_secrets


def _relay_image(transfer: ImageTransfer) -> str:
    links = (transfer.source.open(), transfer.target.open())
    if not isinstance(links[0], SshLink) or not isinstance(links[1], SshLink):
        raise Refused("both hosts must be reached over ssh.", where=transfer.source.host.name)
    pack_command = " ".join(image_archive.COMPRESSORS[transfer.compressor][0])
    save_channel = links[0].run(
        ["sh", "-c", SAVE_SCRIPT, "sparkwright", transfer.source_image["id"], transfer.temporary_tag, pack_command]
    )
    load_channel = links[1].run(
        ["sh", "-c", image_archive.build_load_command(transfer.compressor, transfer.target_image["intake"])]
    )

    def emit_progress(sent_bytes: int) -> None:
        progress_fields = {"task": "copy", "host": transfer.target.host.name, "unit": "bytes", "text": "packed"}
        transfer.fleet.emit_event(event("progress", done=sent_bytes, total=0, **progress_fields))

    outcome = relay(save_channel, load_channel, emit_progress)
    if outcome.code:
        raise Failed(f"Docker refused the image: {outcome.message}", where=transfer.target.host.name)
    return f"{units.format_size(outcome.sent_bytes)} through this laptop"
