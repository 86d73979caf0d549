"""Damaged answers of registries and Docker Engines about images and containers."""

from typing import Any

from sparkwright.engines.vllm import image as engine_image
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import container_options, containers, inspection
from sparkwright.host.images import image_names, registry_client, registry_documents
from sparkwright.modules.image import docker_image
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust import container_option_rules
from sparkwright.trust.image_name import ImageReference, check_image
from sparkwright.visible import one_line
from tests.fuzz.harness import damaged_texts, damaged_values, feed, feed_json, feed_texts

ZERO = "sha256:" + "0" * 64
INDEX = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.index.v1+json",
    "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": ZERO, "size": 1609,
         "platform": {"os": "linux", "architecture": architecture}}
        for architecture in ("amd64", "arm64", "unknown")
    ],
}  # fmt: skip
MANIFEST = {
    "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "size": 9, "digest": ZERO},
    "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "size": 10**9, "digest": ZERO}] * 3,
}  # fmt: skip
CONFIG = {
    "os": "linux", "architecture": "arm64", "created": "2026-11-02T08:14:51.123456789Z",
    "config": {"Env": ["PATH=/bin", "VLLM_VERSION=0.32.0"], "Labels": {"ai.vllm.version": "0.32.0"}, "Cmd": ["x"]},
    "rootfs": {"type": "layers", "diff_ids": [ZERO]},
}  # fmt: skip
DESCRIPTOR = {"mediaType": INDEX["mediaType"], "digest": ZERO, "size": 1}
DISTRIBUTION = {"Descriptor": DESCRIPTOR, "Platforms": [{"architecture": "amd64", "os": "linux"}]}
CONTAINER: dict[str, Any] = {
    "Id": "ab" * 32, "Name": "/qwen35", "Image": ZERO, "RestartCount": 0,
    "State": {"Status": "running", "Running": True, "StartedAt": "2026-11-02T08:14:51.123456789Z", "ExitCode": 0},
    "Config": {"Env": ["PATH=/bin", "A=1"], "Labels": {"made": "by"}, "Entrypoint": ["vllm", "serve"], "Cmd": ["--model", "/m"]},
    "HostConfig": {
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}, "Binds": ["/models:/m:ro"], "IpcMode": "host",
        "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]}, "ShmSize": 2**36,
        "DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}],
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "core", "Soft": 0, "Hard": 0}],
    },
}  # fmt: skip
IMAGE = {
    "Id": ZERO, "RepoTags": ["a/b:v1"], "RepoDigests": [f"a/b@{ZERO}"], "Architecture": "arm64", "Os": "linux", "Size": 10**10,
    "Config": {"Env": ["PATH=/bin"], "Labels": None, "Entrypoint": ["vllm", "serve"], "Cmd": None},
    "RootFS": {"Type": "layers", "Layers": [ZERO]},
}  # fmt: skip
SPEC = ContainerSpec(
    "qwen35", f"a/b:v1@{ZERO}", shm_size="64gb", ports=("8000:8000",), volumes=("/models:/m:ro",), env={"A": "1"},
    labels={"made": "by"}, ulimits={"memlock": "-1"}, command=("--model", "/m"), image_ids=(ZERO,),
)  # fmt: skip


def test_documents_of_a_registry() -> None:
    def read(raw: bytes) -> None:
        for parse in (registry_documents.parse_index, registry_documents.parse_manifest, parse_config):
            try:
                parse(registry_documents.parse_object(raw, "it"), "it")
            except SparkwrightError as error:
                assert str(error).strip()

    def parse_config(document: dict[str, Any], name: str) -> None:
        version = engine_image.version_of(registry_documents.parse_config(document, name)["config"])
        assert version is None or len(version) < 100

    feed_json(read, [INDEX, MANIFEST, CONFIG])


def test_tokens_errors_and_challenges() -> None:
    token, error = b'{"token": "eyJ.abc", "expires_in": 300}', b'{"errors": [{"code": "DENIED", "message": "no"}]}'
    challenge = b'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull"'

    def parse_errors(raw: bytes) -> None:
        result = registry_client.parse_errors(raw)
        assert result == one_line(result) and len(result) < 2000

    feed(lambda raw: registry_client.parse_token(raw, "the token"), damaged_texts([token, b'{"access_token": "a"}']))
    feed(parse_errors, damaged_texts([error]))
    feed_texts(registry_client.parse_challenge, [challenge, b'Basic realm="x"'])
    feed_texts(lambda text: registry_documents.error_from_message("a/b:v1", text), [error, b"401 Unauthorized"])


def test_hosts_of_realms() -> None:
    def read(text: str) -> None:
        value, _, other = text.partition(" ")
        registry_client.is_same_owner(value, other)

    feed_texts(read, [b"registry-1.docker.io auth.docker.io", b"10.0.0.1 10.0.0.2"])


def test_distribution_from_a_docker_engine() -> None:
    def read(value: Any) -> None:
        for platform in registry_documents.parse_distribution(value, "it")["platforms"]:
            docker_image.refuse_other_platforms([platform], "a/b", platform)

    feed(read, damaged_values([DISTRIBUTION]))


def test_comparison_of_an_inspected_container_and_image_with_a_spec() -> None:
    def read(pair: Any) -> None:
        container, image = inspection.validate_container(pair["container"]), inspection.validate_image(pair["image"])
        for change in container_options.differences(SPEC, container, image):
            assert change.field
        containers.name_of(container), container["HostConfig"]["RestartPolicy"]["Name"], container["State"]["Running"]
        containers.url_of(container)
        containers.started_s(container)
        image_names.has_digest(image, ZERO)
        image_names.platform_of(image)
        engine_image.version_of(image.get("Config") or {})

    feed(read, ({"container": value, "image": IMAGE} for value in damaged_values([CONTAINER])))
    feed(read, ({"container": CONTAINER, "image": value} for value in damaged_values([IMAGE])))


def test_image_references_and_container_options() -> None:
    readers = (
        container_option_rules.check_size,
        container_option_rules.check_port,
        container_option_rules.check_gpus,
        container_option_rules.check_ulimit,
        check_image,
    )

    def read(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        for reader in readers:
            reader(text)
        container_option_rules.check_variable(text, text)
        if not container_option_rules.check_size(text):
            container_option_rules.parse_size(text or "0")
        if not container_option_rules.check_port(text):
            container_option_rules.port_bindings((text,))
        if not container_option_rules.check_gpus(text):
            container_option_rules.device_requests(text)
        if not container_option_rules.check_ulimit(text):
            container_option_rules.ulimit_rows({"memlock": text})
        if not check_image(text):
            ImageReference.parse_checked(text)

    seeds = [b"64gb", b"1.5 GiB", b"127.0.0.1:8000:8000/tcp", b"[::1]:1:1", b"device=0,1", b"1024:-1"]
    feed(read, damaged_texts([*seeds, b"registry.lan:5000/a__b/c-d.e:x_Y.1", f"a/b:v1@{ZERO}".encode()]))
