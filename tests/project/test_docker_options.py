"""Each option of `docker run` on the real engine: made, found unchanged, every single change named, and the same by the script."""

import io
import json
import secrets
import subprocess
import time
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
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.scope import cache_options
from sparkwright.protocol import expressions
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from tests.modules.context import RecordingContext
from tests.project.docker_options import CASES, Case
from tests.remote.sshd import free_port

TOP = Path(__file__).parent.parent.parent
IMAGE = f"sparkwright-options:{secrets.token_hex(4)}"  # others may run these tests beside
IMAGE_LINES = [
    "ENV PATH=/usr/bin", "ENV OF=image", "LABEL of=image", "USER 0:0", "WORKDIR /srv", "STOPSIGNAL SIGUSR1", "EXPOSE 9", "VOLUME /v",
    "HEALTHCHECK --interval=7s --timeout=5s CMD true",
]  # fmt: skip
NETWORKS = ("a", "b")
#: answers whatever it is asked
SERVER = (
    'my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:$ARGV[0]", Listen => 9, ReuseAddr => 1) or die; $| = 1; print "up\\n"; '
    'while (my $c = $s->accept) { while (<$c>) { last if /^\\r?$/ } print $c "HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"; close $c }'
)


@dataclass
class Bench:
    """A recipe's folder, an engine with an image that brings something of everything, and two networks."""

    client: Any
    folder: Path
    name: str

    def names(self, case: Case, value: Any, rest: str = "") -> dict[str, Any]:
        """Return the names of a recipe whose container has this value; None leaves the option out. rest: further text of the
        recipe."""
        container: dict[str, Any] = {"name": self.name, "gpus": "", "ipc": "", "ports": []}
        container["volumes"] = ["/usr:/usr:ro", "/lib:/lib:ro", "/lib64:/lib64:ro"]
        container["entrypoint"] = ["sh", "-c", "exec sleep 600"]
        added = [*container["volumes"], *(value or ())] if case.name == "volumes" else value
        container = {k: v for k, v in {**container, **case.beside, case.name: added}.items() if v is not None}
        written = json.dumps(container)
        for network in NETWORKS:
            written = written.replace(f"NETWORK-{network}", self.network(network))
        model = json.dumps({"id": "a/b", "dir": str(self.folder / "model"), "mount": "/model"})
        (self.folder / "recipes").mkdir(exist_ok=True)
        (self.folder / "model").mkdir(exist_ok=True)
        (self.folder / "recipes/one.yml").write_text(f"image: {IMAGE}\nmodel: {model}\ncontainer: {written}\n{rest}")
        loaded_recipe = recipe.load(self.folder, "one")
        return recipe.scope(Host("spark1", "spark1"), "ops", loaded_recipe, {"image": None, "model": None})

    def network(self, name: str) -> str:
        return f"{self.name}-{name}"

    def deploy(self, names: dict[str, Any], *, check: bool = False) -> Any:
        context = RecordingContext(self.folder, check=check)
        return Container().run(Container.Args(spec=json.loads(json.dumps(names["container"]))), context)

    def drift(self, names: dict[str, Any]) -> list[str]:
        return [item["field"] for item in self.deploy(names, check=True).data["drift"]]

    def drift_of_imported(self, names: dict[str, Any]) -> list[str]:
        """Return what would change in the container if its recipe came from the container itself."""
        inspected = self.client.api.inspect_container(self.name)
        image = self.client.api.inspect_image(inspected["Image"])
        separate = ("name", "image", "entrypoint", "command", "env", "ports", "volumes")
        imported = {**option_reader.read_options(inspected, image), "network": option_reader.read_network(inspected)}
        unchanged = {name: names["container"][name] for name in separate}
        spec = ContainerSpec.from_json(json.loads(json.dumps({**unchanged, **imported})))
        return [change.field for change in container_options.differences(spec, inspected, image)]

    def make(self, names: dict[str, Any], *, starts: bool = True) -> None:
        """Create the container as a deploy does."""
        self.remove()
        if starts:
            assert self.deploy(names).changed
            return
        spec = ContainerSpec.from_json(names["container"])
        ours = ownership.build_labels(RecordingContext(self.folder), ownership.SERVER, self.name)
        arguments = container_options.build_create_body(replace(spec, labels={**spec.labels, **ours}))
        self.client.api.create_container_from_config(arguments, self.name)

    def run_script(self, names: dict[str, Any], *, starts: bool = True) -> None:
        self.remove()
        script = str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names))
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

    def inspect_value(self, where: str) -> Any:
        value: Any = json.loads(json.dumps(self.client.api.inspect_container(self.name)).replace(self.name, "NETWORK"))
        for step in where.split("."):
            value = value[step]
        return value

    def remove(self) -> None:
        for container in self.client.api.containers(all=True, filters={"name": f"^/{self.name}$"}):
            self.client.api.remove_container(container["Id"], v=True, force=True)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers")
    value = docker.from_env()
    dockerfile = "\n".join(["FROM scratch", *IMAGE_LINES, ""])
    value.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=IMAGE, rm=True, forcerm=True)
    yield value
    value.api.remove_image(IMAGE)
    value.close()


@pytest.fixture(scope="module")
def bench(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    value = Bench(client, tmp_path_factory.mktemp("options"), f"options-{secrets.token_hex(4)}")
    network_ids = [client.api.create_network(value.network(name))["Id"] for name in NETWORKS]
    yield value
    value.remove()
    for network in network_ids:
        client.api.remove_network(network)
    for volume in client.api.volumes(filters={"name": "words-options"})["Volumes"] or ():
        client.api.remove_volume(volume["Name"])


def test_every_option_has_a_case() -> None:
    by_other_tests = {"gpus"}  # needs a GPU to start
    assert {case.name for case in CASES} == DOCKER_OPTIONS.keys() - by_other_tests


@pytest.mark.docker
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {json.dumps(case.value)}"[:60])
def test_an_option(bench: Bench, case: Case) -> None:
    one, other, without = (bench.names(case, value) for value in (case.value, case.other, None))
    try:
        bench.make(one, starts=case.starts)
        assert bench.drift(one) == []
        assert not case.starts or not bench.deploy(one).changed
        if case.says is not None:
            assert bench.inspect_value(case.where) == case.says
        assert bench.drift_of_imported(one) == []
        assert bench.drift(other) == [case.shown]
        if case.dropped:
            assert bench.drift(without) == [case.shown]
        bench.make(other)
        assert bench.drift(other) == []
        assert bench.drift(one) == [case.shown]
        bench.run_script(one, starts=case.starts)
        if case.starts:
            assert bench.drift(one) == []
        # a person's container is taken over only where it runs, and is what the recipe says
        with pytest.raises(Refused, match="was not started by sparkwright"):
            bench.drift(other if case.starts else one)
    finally:
        bench.remove()


@pytest.mark.docker
def test_what_the_image_brings_is_no_difference(bench: Bench) -> None:
    """For a recipe without options and for one with the same options; another user's own options are a difference."""
    same = {
        "user": "0:0",
        "working_dir": "/srv",
        "stop_signal": "USR1",
        "env": {"OF": "image"},
        "labels": {"of": "image"},
    }
    nothing = bench.names(Case("user", None, None, "", None), None)
    spelled = bench.names(Case("healthcheck", None, None, "", None, beside=same), {"interval": "7s"})
    bench.make(nothing)
    assert bench.drift(nothing) == bench.drift(spelled) == []
    bench.make(spelled)
    assert bench.drift(nothing) == bench.drift(spelled) == []
    by_hand = {**nothing, "docker_options": [*nothing["docker_options"], ["--read-only=true", ""], ["--pid", "host"]]}
    bench.run_script(by_hand)
    with pytest.raises(Refused, match="was not started by sparkwright"):
        bench.drift(nothing)


@pytest.mark.docker
def test_a_mount_that_becomes_read_only_waits_in_an_adopted_container(bench: Bench) -> None:
    case = Case("volumes", None, None, "", None)
    writable, read_only = (bench.names(case, [f"words-options:/data{mode}"]) for mode in ("", ":ro"))
    try:
        bench.make(writable)
        assert bench.drift(read_only) == ["volumes"]
        bench.run_script(writable)
        assert bench.drift(read_only) == []
    finally:
        bench.remove()


@pytest.mark.docker
def test_compile_caches_arrive_in_the_container_of_a_deploy_and_of_the_script(bench: Bench) -> None:
    """Either finds what the other wrote, also below the folder that no variable moves; the spec shows no difference."""
    key, home = "c" * 32, RecordingContext(bench.folder).machine.home
    names = bench.names(Case("env", None, None, "", None), {"OF": "image"})
    spec = replace(ContainerSpec.from_json(names["container"]), caches=key)
    options = cache_options(recipe.load(bench.folder, "one"), spec, str(home))
    names |= {"container": spec.to_json(), "docker_options": [*names["docker_options"], *map(list, options)]}
    header = "/tmp/torchinductor_root/header"
    try:
        bench.make(names)
        bench.exec_script(f"mkdir -p $VLLM_CACHE_ROOT; echo graph > $VLLM_CACHE_ROOT/graph; echo header > {header}")
        live = home / HOST_FOLDER / key / "live" / bench.name
        texts = [(live / name).read_text() for name in ("cache/vllm/graph", "inductor_headers/header")]
        assert texts == ["graph\n", "header\n"]
        ours = bench.bind_mounts()
        bench.run_script(names)
        assert bench.exec_script(f"cat $VLLM_CACHE_ROOT/graph {header}") == "graph\nheader\n"
        assert bench.bind_mounts() == ours
        assert bench.drift(names) == []
    finally:
        bench.remove()


@pytest.mark.docker
def test_a_network_that_goes_away_leaves_no_container_behind(bench: Bench) -> None:
    bench.remove()
    names = bench.names(Case("networks", [], [], "", None), ["no-such-network"])
    with pytest.raises(Failed, match="no-such-network"):
        bench.deploy(names)
    assert bench.client.api.containers(all=True, filters={"name": f"^/{bench.name}$"}) == []


@pytest.mark.docker
def test_a_server_on_the_hosts_network_is_asked_at_its_engines_port(bench: Bench) -> None:
    port = free_port()
    case = Case("network", "host", None, "", None, beside={"ports": None})
    names = bench.names(case, "host", f"vllm: {{port: {port}, host: 127.0.0.1}}\n")
    serve = ["sh", "-c", f"exec perl -MIO::Socket::INET -e '{SERVER}' {port}"]
    bench.make({**names, "container": {**names["container"], "entrypoint": serve}})
    assert next(bench.client.api.logs(bench.name, stream=True, follow=True)) == b"up\n"
    attrs = containers.inspect(bench.client, bench.name) or {}
    assert containers.url_of(attrs) == names["base_url"] == f"http://127.0.0.1:{port}"
    assert http_probe.send_request(names["base_url"], "/health").status == 200
    assert (containers.find_by_port(bench.client, port) or {})["Name"] == f"/{bench.name}"
    assert containers.describe_port_holder(bench.client, port) == f"container {bench.name}"
    bench.client.api.kill(bench.name)
    assert containers.describe_port_holder(bench.client, port) == ""


@pytest.mark.docker
@pytest.mark.parametrize("network", ["bridge", "host"])
def test_a_server_in_a_crash_loop_has_its_port_between_its_starts_too(bench: Bench, network: str) -> None:
    """Else another server would take it, and the two would fight for it."""
    port = free_port()
    spec = bench.names(Case("ports", None, None, "", None), [f"127.0.0.1:{port}:8000"])["container"]
    bench.make({"container": {**spec, "entrypoint": ["sh", "-c", "exit 1"], "network": network}}, starts=False)
    try:
        bench.client.api.update_container(bench.name, restart_policy={"Name": "always"})
        events = bench.client.events(decode=True, filters={"container": bench.name, "event": "die"})
        bench.client.api.start(bench.name)
        for _ in range(6):  # each wait for the next start is longer, the sixth lasts seconds
            next(events)
        while containers.describe_listening_process(port):  # Docker's own, for a moment
            time.sleep(0.01)
        result = Preflight().run(
            Preflight.Args(container={**spec, "name": f"{bench.name}-b"}), RecordingContext(bench.folder)
        )
        assert result.exit == Exit.REFUSED
        assert f"port {port} is in use by container {bench.name}." in result.msg
    finally:
        bench.remove()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("option", "value", "bad"),
    [
        ("network", "NETWORK-a", ""),
        ("network", "no-such-network", "there is no network no-such-network."),
        ("networks", ["NETWORK-a", "no-such-network"], "there is no network no-such-network."),
        ("devices", ["/dev/null"], ""),
        ("devices", ["/dev/no-such-device:/dev/x"], "there is no device /dev/no-such-device on this host."),
        ("cpus", 0.5, ""),
        ("cpus", 9999, "`cpus: 9999` is more than the"),
        ("cpuset_cpus", "0,9998", "this host has no CPU 9998"),
    ],
)
def test_what_the_host_has_not_is_refused_before_anything_is_stopped(
    bench: Bench, option: str, value: Any, bad: str
) -> None:
    names = bench.names(Case(option, value, None, "", None), value)
    result = Preflight().run(Preflight.Args(container=names["container"]), RecordingContext(bench.folder))
    assert result.failed is bool(bad)
    if bad:
        assert result.exit is Exit.REFUSED
        assert result.msg.startswith(bad)
