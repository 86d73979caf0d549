"""The image of a cluster is pulled by one member; the others copy it over the fabric and verify it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.pair import ClusterPair
from tests.cluster.test_model import message, statuses
from tests.e2e.conftest import CommandResult
from tests.measure.json_server import json_server
from tests.real_llama.container_desk import Images
from tests.registry.server import Proxy, Registry

PULL = "Pull image by digest"
SERVE = "Serve image to members that lack it"
COPY = "Copy image from a member, or pull it"
SHORT = "vllm-openai:v0.32.0"


@pytest.fixture
def registry(pair: ClusterPair, images: Images, tmp_path: Path) -> Iterator[Proxy]:
    """Yield the registry of the recipe's image, which no host has."""
    proxy = Proxy(Registry(tmp_path, port=int(images.registry.rpartition(":")[2])))
    pair.images = Images(proxy.address, images.repository)
    pair.recipe()
    remove_images(pair, images, *pair.names)
    yield proxy
    proxy.close()
    pair.close()
    remove_images(pair, images, *pair.names)


def remove_images(pair: ClusterPair, images: Images, *hosts: str) -> None:
    """Remove the images of a repository with all their names from these hosts; no container may use them."""
    for host in hosts:
        rows = pair.docker(host, "images", "--no-trunc", "--format", "{{.Repository}} {{.ID}}").splitlines()
        for image in {row.split()[1] for row in rows if f"/{images.repository}/" in row}:
            pair.docker(host, "rmi", "-f", image)


def sent_layers(proxy: Proxy, config: str) -> list[str]:
    """Return the digest of each sent layer: of each blob but the config, which is also fetched by the lock."""
    sent = [path.rpartition("/")[2] for path, size in proxy.seen if "/blobs/" in path and size]
    return [digest for digest in sent if digest != config]


def image_of(pair: ClusterPair, host: str) -> str:
    return str(pair.container(host)["Image"])


def join_notes(result: CommandResult, host: str) -> str:
    return "\n".join(event["text"] for event in result.events() if event["event"] == "note" and event["host"] == host)


def test_one_member_pulls_the_image_and_the_other_copies_it(pair: ClusterPair, registry: Proxy) -> None:
    first = pair.deployed()
    assert statuses(first, PULL) == {"one": "changed", "two": "skipped"}
    assert statuses(first, COPY) == {"one": "skipped", "two": "changed"}
    assert message(first, COPY, "two") == "copied from one; its Id matches the lock"
    (locked,) = yaml.safe_load((pair.root / "spark.lock").read_text())["images"].values()
    config = locked["manifests"][0]["config"]
    assert (image_of(pair, "one"), image_of(pair, "two")) == (config, config)
    sent = sent_layers(registry, config)
    assert sent and len(sent) == len(set(sent)), "one pull"
    names = json.loads(pair.docker("two", "image", "inspect", config))[0]["RepoTags"]
    assert pair.images.name(f"vllm-openai:{locked['digest'].replace(':', '-')}") in names
    assert pair.generates()
    before = pair.running()
    second = pair.deploy()
    assert second.code == 0, second.out[-2000:]
    assert statuses(second, SERVE) == {"one": "skipped", "two": "skipped"}
    assert pair.running() == before
    assert pair.run_json("verify").code in (0, 4)


def test_either_member_can_serve_the_image_without_a_registry(
    pair: ClusterPair, registry: Proxy, images: Images
) -> None:
    pair.deployed()
    pair.close()
    remove_images(pair, images, "one")
    registry.seen.clear()
    result = pair.deployed()
    assert message(result, COPY, "one") == "copied from two; its Id matches the lock"
    assert sent_layers(registry, "") == []


def build_other_image(name: str) -> bytes:
    """Return an archive like those of `docker save`, with another image under this name."""
    layer, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("evil"))
    diff = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["l/layer.tar"]}]
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in {"l/layer.tar": layer.getvalue(), **files}.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("sends", ["another image", "half an archive", "nothing"])
def test_invalid_copy_of_a_member_is_replaced_by_a_pull(pair: ClusterPair, registry: Proxy, sends: str) -> None:
    archive = build_other_image(pair.images.name(SHORT))
    sent = {"another image": archive, "half an archive": archive[:1500], "nothing": b""}[sends]
    part = pair.root / "playbooks/cluster/parts/image.yml"
    with json_server(lambda path, body: (200, sent) if path == "/image" else (204, b"")) as url:
        offer = f"{{urls: ['{url}'], size_bytes: 4096, containerd: false}}"
        part.write_text(part.read_text().replace('"{{ image_offers.members[image_giver].offer }}"', offer))
        result = pair.deployed()
    assert message(result, COPY, "two") == "pulled"
    notes = join_notes(result, "two")
    reasons = {"another image": "sent a different image", "nothing": "the archive is not a tar"}
    assert "Pulling from" in notes and reasons.get(sends, "archive") in notes, notes
    assert image_of(pair, "one") == image_of(pair, "two")
    images = pair.docker("two", "images", "--no-trunc", "--format", "{{.ID}}").splitlines()
    assert set(images) == {image_of(pair, "two")}


def test_image_is_pulled_if_no_member_serves_it(pair: ClusterPair, registry: Proxy) -> None:
    part = pair.root / "playbooks/cluster/parts/image.yml"
    part.write_text(part.read_text().replace("when: image_giver == host.name and image_lacking", "when: false"))
    result = pair.deployed()
    assert "one: it does not serve the image. Pulling from" in join_notes(result, "two")
