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

from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparkwright import units
from sparkwright.app.clean_host import Stored
from sparkwright.app.connect import Selection, choose
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import lock_of
from sparkwright.app.questions.host_requests import ask_module, in_turn, run_module
from sparkwright.app.runs.presenters import Shown
from sparkwright.console import grid
from sparkwright.console.out import say
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
from sparkwright.trust import image_name
from sparkwright.trust.image_name import Name, pinned

COLUMNS = grid.columns(("HOST", 0), ("STATE", 0), ("FREES", 1), ("IMAGE", 0), ("WHY", 0))


def prune(selection: Selection, *, everything: bool, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused images of each host, ask for confirmation, and remove them.

    Args:
        everything: include images of all repositories.
        check: only show them.
    """
    images = Stored("images", "prune_images", "id", _show)

    def of_host(member: Member) -> Exit:
        args = _prune_args(selection, member, everything=everything)
        return images.prune(selection, member, args, check, yes, json)

    return in_turn(selection, of_host, json=json)


def _prune_args(selection: Selection, member: Member, *, everything: bool) -> dict[str, Any]:
    """Return the repositories that the recipes and the lock name, and the pins, whose images are kept."""
    root: Path = selection.project.root
    lock = lock_of(selection.project, member.host)
    refs = {recipe.load(root, name).image for name in recipe.names(root)} | set(lock.images)
    pinned = {image_name.pinned(ref, entry["digest"]): list(locked_ids(entry)) for ref, entry in lock.images.items()}
    repositories = set() if everything else {image_name.Name.parse(ref).repository for ref in refs}
    return {"repositories": sorted(repositories), "pinned": pinned}


def _show(host: str, images: list[dict[str, Any]]) -> None:
    """Print the images to keep and the images to remove."""
    names = [row["names"][0] if row["names"] else row["id"][7:19] for row in images]
    rows = [
        (host, "keep" if row["kept"] else "free", units.size(row["frees_bytes"]), name, row["kept"])
        for row, name in zip(images, names, strict=True)
    ]
    grid.show_plain_table(COLUMNS, rows)


def copy(source_name: str, to: str, image: str, *, json: bool) -> list[Exit]:
    """Copy an image from one host to others over ssh.

    Args:
        image: the image; empty for the one in the receiving host's recipe.
    """
    selection = choose(f"{source_name},{to}")
    sources = selection.inventory.machines_of(selection.inventory.match(source_name))
    if len(sources) != 1:
        raise Refused(f"--from {source_name} names {len(sources)} hosts.", fix="Name one.")
    local = [host.name for host in selection.hosts if host.connection != "ssh"]
    if local:
        raise Refused(f"{', '.join(local)}: images are only copied between hosts with ssh.")
    source = next(member for member in selection.fleet.members if member.host.machine == sources[0].name)
    targets = [member for member in selection.fleet.members if member.host.machine != sources[0].name]
    if not targets:
        raise Refused(f"--to {to} names no other host than {source_name}.")
    selection.fleet.connect()
    return _copy(selection, source, targets, image, json=json)


def _copy(selection: Selection, source: Member, targets: list[Member], image: str, *, json: bool) -> list[Exit]:
    Shown(selection, json=json, diff=False)
    sentences, codes = list[str](), list[Exit]()

    def copy_to(member: Member) -> None:
        try:
            sentences.append(copy_image_copy(selection, selection.fleet, source, member, image))
        except SparkwrightError as error:
            name = member.host.name
            error.where = error.where or name
            sentences.append(str(error) if error.where == name else f"{name}: {error}")
            codes.append(error.exit)

    try:
        for member in targets:  # in sequence, because they would share the source's network and its Docker Engine
            selection.fleet.each([member], copy_to)
    finally:
        selection.fleet.close()
    for sentence in sentences:
        say(sentence, file=sys.stderr if json else sys.stdout)
    return codes


KEY = "SPARKWRIGHT_COPY_KEY"
MARGIN = 1.05

#: Arguments: image, incoming tag, pack command. sh has no pipefail, so the exit code bypasses the pipe.
SAVE = (
    'docker tag "$1" "$2" || exit 1; '
    'exec 3>&1; code=$( { { docker save "$2"; echo $? >&4; } | $3 >&3; } 4>&1 ); '
    'docker rmi --no-prune "$2" >/dev/null; exit "$code"'
)


@dataclass(frozen=True)
class Wanted:
    """The image to copy."""

    #: reference, with the digest if it is known
    ref: str
    #: image ids that the lock accepts for the digest
    ids: tuple[str, ...] = ()
    #: download size in bytes by platform, from the lock
    sizes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the image in the form that modules take."""
        return {"ref": self.ref, "ids": list(self.ids)}

    @property
    def incoming(self) -> str:
        """A temporary tag, so that an image that has not been compared yet is not used."""
        return f"{Name.parse(self.ref).repository}:incoming-{secrets.token_hex(6)}"


@dataclass(frozen=True)
class ImageTransfer:
    """The transfer of one image between two hosts."""

    fleet: Fleet
    source: Member
    target: Member
    #: answer of `inspect_image` from the source
    here: dict[str, Any]
    #: answer of `inspect_image` from the target
    there: dict[str, Any]
    #: the tag under which the image arrives
    incoming: str
    #: compression program that both ends have
    packer: str


def copy_image_copy(selection: Selection, fleet: Fleet, source: Member, target: Member, image: str) -> str:
    """Copy an image between two members, and return a sentence about the outcome.

    Args:
        image: the image; empty for the one in the target's recipe.

    Raises:
        Refused: the source has no such image, or the target can't take it; nothing is sent then.
    """
    wanted = _wanted(selection, target, image)
    here = ask_module(fleet, source, "inspect_image", wanted.to_json())
    if not here["present"]:
        other = f", only another image under its name ({here['impostor'][7:19]})" if here["impostor"] else ""
        fix = "Deploy it there first, or name one with --image."
        raise Refused(f"{source.host.name} has no {wanted.ref}{other}.", fix=fix)
    if not Name.parse(wanted.ref).digest and here["digests"]:
        wanted = replace(wanted, ref=pinned(wanted.ref, here["digests"][0]))
    # the source may report any size, so the size in the lock limits it
    most = image_archive.bound(here["size_bytes"], wanted.sizes.get(here["platform"]))
    there = ask_module(fleet, target, "inspect_image", {**wanted.to_json(), "most_bytes": most})
    if there["present"] and there["layers"] == here["layers"]:
        return f"{target.host.name}: has {wanted.ref} already."
    incoming, packer = wanted.incoming, image_archive.packer(here["tools"], there["tools"])
    transfer = ImageTransfer(fleet, source, target, here, there, incoming, packer)
    _refuse_what_cannot_be(wanted, transfer)
    started_s = time.monotonic()
    try:
        way = _some_way(transfer)
    except BaseException:
        with suppress(SparkwrightError):  # the error of the copy matters more
            run_module(fleet, target, "undo_load", {"before": there["names"]}, exclusive=True)
        raise
    compared = {"layers": here["layers"], "platform": here["platform"], "before": there["names"]}
    run_module(fleet, target, "adopt_image", {**wanted.to_json(), "incoming": incoming, **compared}, exclusive=True)
    took = units.duration(time.monotonic() - started_s)
    size = units.size(here["size_bytes"])
    proof = "its content is the lock's" if wanted.ids else f"unverified by the lock: the copy of {source.host.name}"
    return f"{target.host.name}: has {wanted.ref} now, {proof} ({size}, {took}, {way}, {packer})."


def _some_way(transfer: ImageTransfer) -> str:
    """Transfer the image, directly if possible, and return a description of the route."""
    try:
        return _straight(transfer)
    except SparkwrightError as error:
        if error.exit is not Exit.UNREACHABLE:
            raise
        transfer.fleet.tell(transfer.target, f"{error.message} Copying through this laptop instead.")
        return _through_the_laptop(transfer)


def _wanted(selection: Selection, target: Member, image: str) -> Wanted:
    if not image:
        image = recipes.recipe_of(selection.project, target.host).image
    name = Name.given(image)
    entry = lock_of(selection.project, target.host).image(name.by_tag)
    if entry is None or (name.digest and name.digest != entry["digest"]):
        return Wanted(image)
    sizes = {manifest["platform"]: manifest["size_bytes"] for manifest in entry.get("manifests") or ()}
    return Wanted(pinned(name.by_tag, entry["digest"]), locked_ids(entry), sizes)


def _refuse_what_cannot_be(wanted: Wanted, transfer: ImageTransfer) -> None:
    here, there, source, target = transfer.here, transfer.there, transfer.source, transfer.target
    if here["platform"] != there["host_platform"]:
        has = f"{source.host.name} has {wanted.ref} for {here['platform']}"
        message = f"{has}, {target.host.name} needs {there['host_platform']}."
        raise Refused(message, fix="Take it from a host of the same kind.")
    need = int(here["size_bytes"] * MARGIN)
    if there["free_bytes"] is not None and there["free_bytes"] < need:
        free = units.size(there["free_bytes"])
        message = f"{free} are free where Docker stores images, but {units.size(need)} are needed."
        raise Refused(message, where=target.host.name, fix=f"`invoke images.prune --host {target.host.name}`.")
    for member, found in ((source, here), (target, there)):
        if "docker" not in found["tools"]:
            raise Refused("the docker command is not there.", where=member.host.name, fix="Install docker-ce-cli.")


def _straight(transfer: ImageTransfer) -> str:
    """Transfer the image from host to host. Raises an error with Exit.UNREACHABLE if they can't reach each other."""
    fleet, target, link = transfer.fleet, transfer.target, transfer.target.open()
    if not isinstance(link, SshLink):
        raise Refused(f"{target.host.name} is not reached over ssh.", fix="On this machine: `docker pull`.")
    private, public = _key_pair()
    allowed = {"public_key": public, "command": image_archive.load_command(transfer.packer, transfer.there["intake"])}
    args = {
        "image": transfer.here["id"],
        "incoming": transfer.incoming,
        "size_bytes": transfer.here["size_bytes"],
        "addresses": _addresses(target, transfer.there["addresses"]),
        "user": ssh_config.resolve(target.host).user,
        "host_key": link.host_key(),
        "packer": transfer.packer,
    }
    run_module(fleet, target, "copy_key", allowed)
    try:
        with _given(transfer.source, KEY, private):
            sent = run_module(fleet, transfer.source, "send_image", args)
    finally:
        run_module(fleet, target, "copy_key", {**allowed, "state": "absent"})
    return f"straight to {sent['address']}"


def _addresses(target: Member, own: list[str]) -> list[str]:
    """Return the addresses at which another host may reach the target's sshd.

    These are the target's addresses on its networks, then the one that the laptop uses unless it is loopback.
    """
    resolved = ssh_config.resolve(target.host)
    ports = dict.fromkeys([22, resolved.port])
    found = [f"{address}:{port}" for address in own for port in ports]
    if resolved.jump or resolved.hostname in ("localhost", "::1") or resolved.hostname.startswith("127."):
        return found
    return list(dict.fromkeys([*found, f"{resolved.hostname}:{resolved.port}"]))


def _key_pair() -> tuple[Secret, str]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return Secret(private.decode()), public.decode()


@contextmanager
def _given(member: Member, name: str, secret: Secret) -> Iterator[None]:
    """Give a member a secret for one request."""
    before = dict(member.secrets)
    member.secrets = {**before, name: secret}
    try:
        yield
    finally:
        member.secrets = before


def _through_the_laptop(transfer: ImageTransfer) -> str:
    links = (transfer.source.open(), transfer.target.open())
    if not isinstance(links[0], SshLink) or not isinstance(links[1], SshLink):
        raise Refused("both hosts must be reached over ssh.", where=transfer.source.host.name)
    pack = " ".join(image_archive.PACKERS[transfer.packer][0])
    out = links[0].run(["sh", "-c", SAVE, "sparkwright", transfer.here["id"], transfer.incoming, pack])
    into = links[1].run(["sh", "-c", image_archive.load_command(transfer.packer, transfer.there["intake"])])

    def progress(sent: int) -> None:
        about = {"task": "copy", "host": transfer.target.host.name, "unit": "bytes", "text": "packed"}
        transfer.fleet.say_later(event("progress", done=sent, total=0, **about))

    ended = relay(out, into, progress)
    if ended.code:
        raise Failed(f"its Docker Engine refuses the image: {ended.message}", where=transfer.target.host.name)
    return f"{units.size(ended.sent_bytes)} through this laptop"
