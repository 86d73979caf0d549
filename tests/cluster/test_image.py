"""The image of a cluster is pulled once: the other members copy it from the first over their own link, with the same
verification."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.cluster.pair import ClusterPair, failures
from tests.cluster.test_model import message, statuses
from tests.e2e.conftest import CommandResult
from tests.real_llama.container_desk import Images
from tests.registry.server import Proxy, Registry

PULL = "Pull image by digest"
SERVE = "Serve image to members that lack it"
COPY = "Copy image from a member, or pull it"
SHORT = "vllm-openai:v0.32.0"


@pytest.fixture
def registry(pair: ClusterPair, images: Images, tmp_path: Path) -> Iterator[Proxy]:
    """Yield the registry of the pair's recipe. No host has the image."""
    proxy = Proxy(Registry(tmp_path, port=int(images.registry.rpartition(":")[2])))
    pair.images = Images(proxy.address, images.repository)
    pair.recipe()
    remove_images(pair, *pair.names)
    yield proxy
    proxy.close()
    pair.close()
    remove_images(pair, *pair.names)


def remove_images(pair: ClusterPair, *hosts: str) -> None:
    """Remove the engine's images of this repository, under all their names; one that a container uses cannot be removed."""
    for host in hosts:
        rows = pair.docker(host, "images", "--no-trunc", "--format", "{{.Repository}} {{.ID}}").splitlines()
        for image in {row.split()[1] for row in rows if f"/{pair.images.repository}/" in row}:
            pair.docker(host, "rmi", "-f", image)


def sent_layers(proxy: Proxy, config: str) -> list[str]:
    """Return the layers that were sent, by digest, once per transfer.

    Args:
        config: the digest of the config, which is not a layer and is also fetched by the lock.
    """
    sent = [path.rpartition("/")[2] for path, size in proxy.seen if "/blobs/" in path and size]
    return [digest for digest in sent if digest != config]


def locked_image(pair: ClusterPair) -> Any:
    """Return the lock's entry of the image."""
    (image,) = yaml.safe_load((pair.root / "spark.lock").read_text())["images"].values()
    return image


def image_of(pair: ClusterPair, host: str) -> str:
    return str(pair.container(host)["Image"])


def notes(answer: CommandResult, host: str) -> str:
    return "\n".join(event["text"] for event in answer.events() if event["event"] == "note" and event["host"] == host)


def test_one_member_pulls_the_image_and_the_other_copies_it(pair: ClusterPair, registry: Proxy) -> None:
    first = pair.deploy()
    assert first.proved, list(failures(first))
    assert statuses(first, PULL) == {"one": "changed", "two": "skipped"}
    assert statuses(first, COPY) == {"one": "skipped", "two": "changed"}
    assert message(first, COPY, "two") == "copied from one; its Id matches the lock"
    locked = locked_image(pair)
    config = locked["manifests"][0]["config"]
    assert (image_of(pair, "one"), image_of(pair, "two")) == (config, config)
    sent = sent_layers(registry, config)
    assert sent and len(sent) == len(set(sent))  # of one pull
    names = json.loads(pair.docker("two", "image", "inspect", config))[0]["RepoTags"]
    assert pair.images.name(f"vllm-openai:{locked['digest'].replace(':', '-')}") in names
    assert pair.generates()
    before = pair.running()
    second_run = pair.deploy()
    assert second_run.code == 0, second_run.out[-2000:]
    assert statuses(second_run, SERVE) == {"one": "skipped", "two": "skipped"}
    assert pair.running() == before
    assert pair.run("verify", "--host", "pair", "--json").code in (0, 4)


def test_either_member_can_serve_the_image_without_a_registry(pair: ClusterPair, registry: Proxy) -> None:
    assert pair.deploy().proved
    pair.close()
    remove_images(pair, "one")
    registry.seen.clear()
    answer = pair.deploy()
    assert answer.proved, list(failures(answer))
    assert message(answer, COPY, "one") == "copied from two; its Id matches the lock"
    assert sent_layers(registry, "") == []


class HostileMember(BaseHTTPRequestHandler):
    """A member that sends another image under the name of the requested one."""

    archive = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/image" else 204)
        if self.path == "/image":
            self.send_header("Content-Length", str(len(self.archive)))
        self.end_headers()
        self.wfile.write(self.archive if self.path == "/image" else b"")

    def log_message(self, *args: Any) -> None:
        pass


def build_other_image(name: str) -> bytes:
    """Return an archive as `docker save` writes it, with another image of this name: one layer and a config."""
    layer, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("evil"))
    diff = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    parts = {
        "l/layer.tar": layer.getvalue(),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(
            [{"Config": "config.json", "RepoTags": [name], "Layers": ["l/layer.tar"]}]
        ).encode(),
    }
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in parts.items():
            about_file = tarfile.TarInfo(path)
            about_file.size = len(data)
            tar.addfile(about_file, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("sends", ["another image", "half an archive", "nothing"])
def test_invalid_copy_of_a_member_is_replaced_by_a_pull(pair: ClusterPair, registry: Proxy, sends: str) -> None:
    archive = build_other_image(pair.images.name(SHORT))
    HostileMember.archive = {"another image": archive, "half an archive": archive[:1500], "nothing": b""}[sends]
    server = ThreadingHTTPServer(("127.0.0.1", 0), HostileMember)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    part = pair.root / "playbooks/cluster/parts/image.yml"
    offer = f"{{urls: ['{url}'], size_bytes: 4096, containerd: false}}"
    part.write_text(part.read_text().replace('"{{ image_offers.members[image_giver].offer }}"', offer))
    try:
        answer = pair.deploy()
    finally:
        server.shutdown()
        server.server_close()
    assert answer.proved, list(failures(answer))
    assert message(answer, COPY, "two") == "pulled"
    result = notes(answer, "two")
    assert "Pulling from" in result
    expected = {"another image": "sent a different image", "nothing": "the archive is not a tar"}.get(sends, "")
    assert expected in result, result
    assert sends != "half an archive" or "Docker cannot load its archive" in result or "the archive" in result, result
    assert image_of(pair, "one") == image_of(pair, "two")
    kept = pair.docker("two", "images", "--no-trunc", "--format", "{{.ID}}").splitlines()
    assert set(kept) == {image_of(pair, "two")}


def test_image_is_pulled_if_no_member_serves_it(pair: ClusterPair, registry: Proxy) -> None:
    part = pair.root / "playbooks/cluster/parts/image.yml"
    part.write_text(part.read_text().replace("when: image_giver == host.name and image_lacking", "when: false"))
    answer = pair.deploy()
    assert answer.proved, list(failures(answer))
    assert "one: it does not serve the image. Pulling from" in notes(answer, "two")
