"""Each option of `docker run` with a real Docker Engine: a container differs from its recipe only after a change."""

import io
import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.compile_caches import HOST_FOLDER
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.host.containers import container_options, containers, option_reader, ownership
from sparkwright.measure import http_probe
from sparkwright.modules.proof.preflight import Preflight
from sparkwright.modules.server.container import Container
from sparkwright.project import recipe
from sparkwright.project.recipe.scope import cache_options
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from tests.modules.context import RecordingContext
from tests.project.docker_options import CASES, NETWORK_A, NETWORK_B, Case
from tests.project.recipes import load_text, render_script, resolve_variables
from tests.remote.sshd import free_port
from tests.waiting import wait_until

IMAGE = f"sparkwright-options:{secrets.token_hex(4)}"  # several runs may share the engine
IMAGE_LINES = [
    "ENV PATH=/usr/bin", "ENV OF=image", "LABEL of=image", "USER 0:0", "WORKDIR /srv", "STOPSIGNAL SIGUSR1", "EXPOSE 9", "VOLUME /v",
    "HEALTHCHECK --interval=7s --timeout=5s CMD true",
]  # fmt: skip
#: answers 200 to every request
SERVER = (
    'my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:$ARGV[0]", Listen => 9, ReuseAddr => 1) or die; $| = 1; print "up\\n"; '
    'while (my $c = $s->accept) { while (<$c>) { last if /^\\r?$/ } print $c "HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"; close $c }'
)


@dataclass
class Bench:
    """A folder for a recipe, and an engine with an image that sets many options and two networks."""

    client: Any
    folder: Path
    name: str

    def resolve(
        self, option: str, value: Any, container: dict[str, Any] | None = None, more_lines: str = ""
    ) -> dict[str, Any]:
        """Return the variables of a recipe with this option; None leaves it out. container: other fields of the container."""
        fields: dict[str, Any] = {"name": self.name, "gpus": "", "ipc": "", "ports": []}
        fields["volumes"] = ["/usr:/usr:ro", "/lib:/lib:ro", "/lib64:/lib64:ro"]
        fields["entrypoint"] = ["sh", "-c", "exec sleep 600"]
        if option == "volumes":
            value = [*fields["volumes"], *(value or ())]
        fields |= {**(container or {}), option: value}
        written = json.dumps({name: field for name, field in fields.items() if field is not None})
        for network in (NETWORK_A, NETWORK_B):
            written = written.replace(network, self.network_name(network))
        model = json.dumps({"id": "a/b", "dir": str(self.folder / "model"), "mount": "/model"})
        (self.folder / "model").mkdir(exist_ok=True)
        text = f"image: {IMAGE}\nmodel: {model}\ncontainer: {written}\n{more_lines}"
        return resolve_variables(load_text(self.folder, text))

    def network_name(self, placeholder: str) -> str:
        return placeholder.replace("NETWORK", self.name)

    def deploy(self, variables: dict[str, Any], *, check: bool = False) -> Any:
        context = RecordingContext(self.folder, check=check)
        return Container().run(Container.Args(spec=json.loads(json.dumps(variables["container"]))), context)

    def drift(self, variables: dict[str, Any]) -> list[str]:
        return [item["field"] for item in self.deploy(variables, check=True).data["drift"]]

    def drift_of_imported(self, variables: dict[str, Any]) -> list[str]:
        """Return the differences between the container and a recipe imported from it."""
        inspected = self.client.api.inspect_container(self.name)
        image = self.client.api.inspect_image(inspected["Image"])
        separate = ("name", "image", "entrypoint", "command", "env", "ports", "volumes")
        imported = {**option_reader.read_options(inspected, image), "network": option_reader.read_network(inspected)}
        unchanged = {name: variables["container"][name] for name in separate}
        spec = ContainerSpec.from_json(json.loads(json.dumps({**unchanged, **imported})))
        return [change.field for change in container_options.differences(spec, inspected, image)]

    def make(self, variables: dict[str, Any], *, starts: bool = True) -> None:
        """Create the container as a deploy does."""
        self.remove()
        if starts:
            assert self.deploy(variables).changed
            return
        spec = ContainerSpec.from_json(variables["container"])
        labels = ownership.build_labels(RecordingContext(self.folder), ownership.SERVER, self.name)
        body = container_options.build_create_body(replace(spec, labels={**spec.labels, **labels}))
        self.client.api.create_container_from_config(body, self.name)

    def run_script(self, variables: dict[str, Any], *, starts: bool = True) -> None:
        self.remove()
        script = render_script(variables)
        script = script if starts else script.replace("docker run -d", "docker create")
        result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode == 0, (result.stderr, script)

    def exec_script(self, script: str) -> str:
        """Return the output of a script in the container."""
        options = self.client.api.exec_create(self.name, ["sh", "-c", script])
        return str(self.client.api.exec_start(options["Id"]).decode())

    def bind_mounts(self) -> set[tuple[str, str]]:
        attrs = self.client.api.inspect_container(self.name)
        return {(mount["Source"], mount["Destination"]) for mount in attrs["Mounts"] if mount["Type"] == "bind"}

    def inspect_value(self, path: str) -> Any:
        value: Any = json.loads(json.dumps(self.client.api.inspect_container(self.name)).replace(self.name, "NETWORK"))
        for key in path.split("."):
            value = value[key]
        return value

    def remove(self) -> None:
        for container in self.client.api.containers(all=True, filters={"name": f"^/{self.name}$"}):
            self.client.api.remove_container(container["Id"], v=True, force=True)


@pytest.fixture(scope="module")
def bench(docker_client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    dockerfile = "\n".join(["FROM scratch", *IMAGE_LINES, ""])
    docker_client.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=IMAGE, rm=True, forcerm=True)
    value = Bench(docker_client, tmp_path_factory.mktemp("options"), f"options-{secrets.token_hex(4)}")
    api = docker_client.api
    network_ids = [api.create_network(value.network_name(network))["Id"] for network in (NETWORK_A, NETWORK_B)]
    yield value
    value.remove()
    for network in network_ids:
        api.remove_network(network)
    for volume in api.volumes(filters={"name": "words-options"})["Volumes"] or ():
        api.remove_volume(volume["Name"])
    api.remove_image(IMAGE)


@pytest.fixture
def removed_container(bench: Bench) -> Iterator[None]:
    """Remove the container at the end of the test."""
    yield
    bench.remove()


def test_every_option_has_a_case() -> None:
    covered_elsewhere = {"gpus"}  # a container with GPUs starts only where there is one
    assert {case.name for case in CASES} == DOCKER_OPTIONS.keys() - covered_elsewhere


@pytest.mark.docker
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {json.dumps(case.value)}"[:60])
@pytest.mark.usefixtures("removed_container")
def test_only_a_change_of_the_option_is_drift(bench: Bench, case: Case) -> None:
    recipe_values = (case.value, case.other, None)
    first, other, without = (bench.resolve(case.name, value, case.container) for value in recipe_values)
    drift = [case.name.replace("_", "-")]
    bench.make(first, starts=case.starts)
    assert bench.drift(first) == []
    assert not case.starts or not bench.deploy(first).changed
    if case.inspected is not None:
        assert bench.inspect_value(case.path) == case.inspected
    assert bench.drift_of_imported(first) == []
    assert bench.drift(other) == drift
    if case.drifts_without:
        assert bench.drift(without) == drift
    bench.make(other)
    assert bench.drift(other) == []
    assert bench.drift(first) == drift
    bench.run_script(first, starts=case.starts)
    if case.starts:
        assert bench.drift(first) == []
    # a user's container is adopted only if it runs and matches the recipe
    with pytest.raises(Refused, match="was not started by sparkwright"):
        bench.drift(other if case.starts else first)


@pytest.mark.docker
@pytest.mark.usefixtures("removed_container")
def test_options_of_the_image_are_no_drift(bench: Bench) -> None:
    """Neither for a recipe without options nor for one with the same; other options of a user's container are."""
    same = {
        "user": "0:0",
        "working_dir": "/srv",
        "stop_signal": "USR1",
        "env": {"OF": "image"},
        "labels": {"of": "image"},
    }
    plain = bench.resolve("user", None)
    spelled = bench.resolve("healthcheck", {"interval": "7s"}, same)
    for created in (plain, spelled):
        bench.make(created)
        assert bench.drift(plain) == bench.drift(spelled) == []
    by_hand = {**plain, "docker_options": [*plain["docker_options"], ["--read-only=true", ""], ["--pid", "host"]]}
    bench.run_script(by_hand)
    with pytest.raises(Refused, match="was not started by sparkwright"):
        bench.drift(plain)


@pytest.mark.docker
@pytest.mark.usefixtures("removed_container")
def test_read_only_mount_is_drift_except_in_an_adopted_container(bench: Bench) -> None:
    writable, read_only = (bench.resolve("volumes", [f"words-options:/data{mode}"]) for mode in ("", ":ro"))
    bench.make(writable)
    assert bench.drift(read_only) == ["volumes"]
    bench.run_script(writable)
    assert bench.drift(read_only) == []


@pytest.mark.docker
@pytest.mark.usefixtures("removed_container")
def test_deploy_and_script_share_compile_caches(bench: Bench) -> None:
    """Each finds the files of the other, also in the folder that no variable moves."""
    key, home = "c" * 32, RecordingContext(bench.folder).machine.home
    variables = bench.resolve("env", {"OF": "image"})
    spec = replace(ContainerSpec.from_json(variables["container"]), caches=key)
    options = cache_options(recipe.load(bench.folder, "one"), spec, str(home))
    docker_options = [*variables["docker_options"], *map(list, options)]
    variables |= {"container": spec.to_json(), "docker_options": docker_options}
    header = "/tmp/torchinductor_root/header"
    bench.make(variables)
    bench.exec_script(f"mkdir -p $VLLM_CACHE_ROOT; echo graph > $VLLM_CACHE_ROOT/graph; echo header > {header}")
    live = home / HOST_FOLDER / key / "live" / bench.name
    texts = [(live / name).read_text() for name in ("cache/vllm/graph", "inductor_headers/header")]
    assert texts == ["graph\n", "header\n"]
    mounts = bench.bind_mounts()
    bench.run_script(variables)
    assert bench.exec_script(f"cat $VLLM_CACHE_ROOT/graph {header}") == "graph\nheader\n"
    assert bench.bind_mounts() == mounts
    assert bench.drift(variables) == []


@pytest.mark.docker
def test_missing_network_leaves_no_container(bench: Bench) -> None:
    bench.remove()
    with pytest.raises(Failed, match="no-such-network"):
        bench.deploy(bench.resolve("networks", ["no-such-network"]))
    assert bench.client.api.containers(all=True, filters={"name": f"^/{bench.name}$"}) == []


@pytest.mark.docker
def test_server_on_the_host_network_is_found_at_the_engine_port(bench: Bench) -> None:
    port = free_port()
    flags = f"vllm: {{port: {port}, host: 127.0.0.1}}\n"
    variables = bench.resolve("network", "host", {"ports": None}, flags)
    serve = ["sh", "-c", f"exec perl -MIO::Socket::INET -e '{SERVER}' {port}"]
    bench.make({**variables, "container": {**variables["container"], "entrypoint": serve}})
    assert next(bench.client.api.logs(bench.name, stream=True, follow=True)) == b"up\n"
    attrs = containers.inspect(bench.client, bench.name) or {}
    assert containers.url_of(attrs) == variables["base_url"] == f"http://127.0.0.1:{port}"
    assert http_probe.send_request(variables["base_url"], "/health").status == 200
    assert (containers.find_by_port(bench.client, port) or {})["Name"] == f"/{bench.name}"
    assert containers.describe_port_holder(bench.client, port) == f"container {bench.name}"
    bench.client.api.kill(bench.name)
    assert containers.describe_port_holder(bench.client, port) == ""


@pytest.mark.docker
@pytest.mark.parametrize("network", ["bridge", "host"])
@pytest.mark.usefixtures("removed_container")
def test_server_in_a_crash_loop_holds_its_port_between_starts(bench: Bench, network: str) -> None:
    """Otherwise another server would take the port, and the two would fight for it."""
    port = free_port()
    spec = bench.resolve("ports", [f"127.0.0.1:{port}:8000"])["container"]
    bench.make({"container": {**spec, "entrypoint": ["sh", "-c", "exit 1"], "network": network}}, starts=False)
    bench.client.api.update_container(bench.name, restart_policy={"Name": "always"})
    events = bench.client.events(decode=True, filters={"container": bench.name, "event": "die"})
    bench.client.api.start(bench.name)
    for _ in range(6):  # each wait for the next start is longer, the sixth lasts seconds
        next(events)
    wait_until(lambda: not containers.describe_listening_process(port), "the end of Docker's own listener")
    args = Preflight.Args(container={**spec, "name": f"{bench.name}-b"})
    result = Preflight().run(args, RecordingContext(bench.folder))
    assert result.exit == Exit.REFUSED
    assert f"port {port} is in use by container {bench.name}." in result.msg


@pytest.mark.docker
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("network", NETWORK_A, ""),
        ("network", "no-such-network", "there is no network no-such-network."),
        ("networks", [NETWORK_A, "no-such-network"], "there is no network no-such-network."),
        ("devices", ["/dev/null"], ""),
        ("devices", ["/dev/no-such-device:/dev/x"], "there is no device /dev/no-such-device on this host."),
        ("cpus", 0.5, ""),
        ("cpus", 9999, "`cpus: 9999` is more than the"),
        ("cpuset_cpus", "0,9998", "this host has no CPU 9998"),
    ],
)
def test_preflight_refuses_what_the_host_lacks(bench: Bench, option: str, value: Any, message: str) -> None:
    args = Preflight.Args(container=bench.resolve(option, value)["container"])
    result = Preflight().run(args, RecordingContext(bench.folder))
    assert result.failed is bool(message)
    if message:
        assert result.exit is Exit.REFUSED
        assert result.msg.startswith(message)
