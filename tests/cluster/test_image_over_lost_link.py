"""The copy of an image between two Docker Engines while a link of the fabric fails: two loopback addresses with relays."""

import io
import os
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.images import image_copy
from sparkwright.host.images.image_names import machine_platform
from sparkwright.modules.image.docker_image import ShareImage
from sparkwright.secret import Secret
from sparkwright.transport import connection
from sparkwright.trust.secret_names import PEER_TOKEN
from tests.host.test_peers import TWINS, Relay
from tests.modules.context import RecordingContext

TOKEN = Secret("one-time-token")
LAYER_BYTES, CUT_AFTER = 24 * 2**20, 5 * 2**20


class UnpluggableLink(Relay):
    """A link that drops all packets when it is closed, without an error on either side."""

    def close(self) -> None:
        port = self.url.rpartition(":")[2]
        for rule in (("-d", TWINS[0], "--dport", port), ("-s", TWINS[0], "--sport", port)):
            self.rules.append(["-p", "tcp", *rule, "-j", "DROP"])
            subprocess.run(["iptables", "-I", "INPUT", *self.rules[-1]], check=True, timeout=20)

    def remove(self) -> None:
        for rule in self.rules:
            subprocess.run(["iptables", "-D", "INPUT", *rule], check=True, timeout=20)
        super().close()

    @property
    def rules(self) -> list[list[str]]:
        rules: list[list[str]] = self.__dict__.setdefault("_rules", [])
        return rules


@dataclass
class Members:
    """The giver has the image in this machine's engine; the taker has another, empty engine."""

    giver: RecordingContext
    taker: RecordingContext
    ref: str
    image: str

    def serve(self) -> list[dict[str, Any]]:
        """Return the giver's offer at each address."""
        arguments = [ShareImage.Args(ref=self.ref, ids=[self.image], bind=address) for address in TWINS]
        return [ShareImage().run(args, self.giver).data["offer"] for args in arguments]

    def copy(self, links: list[Relay], offer: dict[str, Any]) -> dict[str, Any]:
        offer = {**offer, "urls": [link.url for link in links]}
        return image_copy.copy(self.taker, self.ref, [self.image], machine_platform(self.taker.machine), "one", offer)

    def taken_images(self) -> set[str]:
        return {image["Id"] for image in self.taker.docker().api.images(all=True)}


@pytest.fixture
def members(tmp_path: Path, second_engine: str) -> Iterator[Members]:
    def context(name: str, engine: str) -> RecordingContext:
        return RecordingContext(
            tmp_path / name, secrets={PEER_TOKEN: TOKEN}, docker_host=engine, architecture=os.uname().machine
        )

    giver, taker = context("one", ""), context("two", second_engine)
    name = f"127.0.0.1:5000/test-{secrets.token_hex(4)}/vllm:v1"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("weights")
        entry.size = LAYER_BYTES
        tar.addfile(entry, io.BytesIO(os.urandom(LAYER_BYTES)))
    giver.docker().api.import_image_from_data(layer.getvalue(), *name.rsplit(":", 1))
    image = giver.docker().api.inspect_image(name)["Id"]
    try:
        yield Members(giver, taker, f"{name}@sha256:{secrets.token_hex(32)}", image)
    finally:
        giver.docker().api.remove_image(image, force=True)
        for item in taker.docker().api.images(quiet=True):
            taker.docker().api.remove_image(item, force=True)


def test_copy_continues_if_the_first_link_is_cut(members: Members) -> None:
    offers = members.serve()
    links = [Relay(TWINS[0], offers[0]["urls"][0], CUT_AFTER), Relay(TWINS[1], offers[1]["urls"][0])]
    assert members.copy(links, offers[0])["Id"] == members.image
    assert members.taken_images() == {members.image}
    assert 0 < links[0].passed < LAYER_BYTES < links[1].passed
    (note,) = members.taker.notes
    assert "one: the copy was interrupted after" in note and note.endswith(f"Retrying at {links[1].url}.")


def test_copy_continues_if_the_first_link_is_unplugged(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() or not shutil.which("iptables"):
        pytest.skip("unplugging needs root and iptables")
    for name, value in {"KEEPALIVE_IDLE_S": 1, "KEEPALIVE_INTERVAL_S": 1, "KEEPALIVE_PROBES": 2}.items():
        monkeypatch.setattr(connection, name, value)
    offers = members.serve()
    unplugged = UnpluggableLink(TWINS[0], offers[0]["urls"][0], CUT_AFTER)
    links = [unplugged, Relay(TWINS[1], offers[1]["urls"][0])]
    try:
        assert members.copy(links, offers[0])["Id"] == members.image
    finally:
        unplugged.remove()
    assert members.taken_images() == {members.image}
    assert 0 < unplugged.passed < LAYER_BYTES < links[1].passed
    assert any(f"Retrying at {links[1].url}." in note for note in members.taker.notes), members.taker.notes


def test_copy_fails_without_leftovers_if_both_links_are_cut(members: Members) -> None:
    offers = members.serve()
    links = [Relay(address, offer["urls"][0], CUT_AFTER) for address, offer in zip(TWINS, offers, strict=True)]
    with pytest.raises(Failed, match="the copy was interrupted after"):
        members.copy(links, offers[0])
    assert all(link.passed for link in links)
    assert members.taken_images() == set()


def test_closed_link_is_skipped(members: Members) -> None:
    offers = members.serve()
    links = [Relay(address, offer["urls"][0]) for address, offer in zip(TWINS, offers, strict=True)]
    links[0].close()
    assert members.copy(links, offers[0])["Id"] == members.image
    assert links[0].passed == 0 and members.taken_images() == {members.image}
