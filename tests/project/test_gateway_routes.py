"""`gateway:` of a group: the routes from the project's files, and mistakes that are refused with their line."""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sparkwright.errors import Refused
from sparkwright.gateway import render
from sparkwright.gateway.model import Gateway
from sparkwright.project import gateway_certificate, gateway_routes
from sparkwright.project.inventory.inventory import Inventory

CHAT = """image: vllm/vllm-openai:v0.32.0
model: {id: Qwen/Qwen3.5-35B, dir: ~/models/qwen, mount: /models/qwen}
container: {name: qwen}
vllm: {served-model-name: qwen, max-model-len: 131072, max-num-seqs: 8}
"""
SMALL = """image: vllm/vllm-openai:v0.32.0
model: {id: Qwen/Qwen3-4B, dir: ~/models/small, mount: /models/small}
container: {name: small, ports: ["8001:8000"]}
vllm: {served-model-name: small}
"""
LAB = "lab:\n  hosts: [spark1, spark2, spark3]\n  gateway:\n    host: spark1\n    port: 8080\n    tls: none\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("hosts", "recipes"):
        (tmp_path / folder).mkdir()
    for n, name in ((1, "chat"), (2, "chat"), (3, "small")):
        write_host(tmp_path, n, f"recipe: {name}")
    write_group(tmp_path)
    write_recipe(tmp_path, "chat", CHAT)
    write_recipe(tmp_path, "small", SMALL)
    return tmp_path


def write_group(project: Path, more_lines: str = "", text: str = LAB) -> None:
    (project / "hosts/groups.yml").write_text(text + more_lines)


def write_host(project: Path, n: int, lines: str) -> None:
    (project / f"hosts/spark{n}.yml").write_text(f"address: 10.0.0.{n}\n{lines}\n")


def write_recipe(project: Path, name: str, text: str) -> None:
    (project / f"recipes/{name}.yml").write_text(text)


def build_gateway(project: Path) -> Gateway:
    inventory = Inventory.load(project)
    return gateway_routes.build_routes(project, inventory, inventory.gateways["lab"])[0]


def write_certificate(folder: Path, name: str, days: int = 30) -> None:
    """Write a certificate NAME.pem that expires in this many days, and its key NAME.key."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=9))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    (folder / f"{name}.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    encoding = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(*encoding))


def test_upstreams_of_models(project: Path) -> None:
    qwen, small = build_gateway(project).models
    assert [(upstream.name, upstream.address, upstream.port, upstream.slots) for upstream in qwen.upstreams] == [
        ("spark1", "127.0.0.1", 8000, 8),
        ("spark2", "10.0.0.2", 8000, 8),
    ]
    assert (qwen.name, qwen.context) == ("qwen", 131072)
    assert [(upstream.name, upstream.port) for upstream in small.upstreams] == [("spark3", 8001)]


def test_body_limit_follows_the_longest_context(project: Path) -> None:
    assert build_gateway(project).body_bytes == 8 * 131072
    write_group(project, "    limits: {body_mib: 3}\n")
    assert build_gateway(project).body_bytes == 3 * 2**20


def test_address_of_a_host_for_the_gateway(project: Path) -> None:
    write_group(project, "    addresses: {spark2: 192.168.100.12}\n")
    assert build_gateway(project).models[0].upstreams[1].address == "192.168.100.12"


def interim_ports(project: Path) -> dict[str, int]:
    return {up.name: up.interim_port for model in build_gateway(project).models for up in model.upstreams}


def test_interim_port_of_each_server(project: Path) -> None:
    assert interim_ports(project) == {"spark1": 18000, "spark2": 18000, "spark3": 18001}


def test_interim_port_is_unused_by_others(project: Path) -> None:
    """It is neither a port of the gateway nor of another server on the host; if none above is free, one below is used."""
    write_group(project, text=LAB.replace("8080", "18000"))
    write_host(project, 2, "serves: [chat, {recipe: small, port: 18000}]")
    write_host(project, 3, "recipe: small\nserve_port: 60000")
    assert interim_ports(project) == {"spark1": 18002, "spark2:chat": 18001, "spark2:small": 28000, "spark3": 50000}


def test_server_on_the_host_network_has_no_interim_port(project: Path) -> None:
    write_recipe(project, "small", SMALL.replace('ports: ["8001:8000"]', "network: host"))
    assert interim_ports(project)["spark3"] == 0


def test_only_the_head_of_a_cluster_is_an_upstream(project: Path) -> None:
    for n in (2, 3):
        write_host(project, n, f"fabric: {{interfaces: [enp1s0f1np1], address: 192.168.100.1{n}}}")
    big = CHAT.replace("name: qwen", "name: big").replace(": qwen,", ": big,")
    write_recipe(project, "big", big + "parallel: {tensor: 2}\n")
    write_group(project, "pair:\n  hosts: [spark2, spark3]\n  cluster: {recipe: big, head: spark3}\n")
    assert [(model.name, [up.name for up in model.upstreams]) for model in build_gateway(project).models] == [
        ("big", ["spark3"]),
        ("qwen", ["spark1"]),
    ]


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ("host: spark1", "host: spark9", "hosts/groups.yml:4: `lab.gateway.host`: no host named 'spark9'."),
        ("spark1, spark2, spark3", "spark2, spark3", "hosts/groups.yml:4: `lab.gateway.host`: spark1 is not in the group."),
        ("port: 8080", "port: 8000", "hosts/groups.yml:5: `lab.gateway.port`: 8000 is the port of the server of spark1."),
        ("port: 8080", "port: 80", "hosts/groups.yml:5: `lab.gateway.port` must be at least 1024, got 80."),
        ("    tls: none\n", "", "hosts/groups.yml:3: `tls` is missing: {certificate: FILE, key: SOURCE}, or `none` for plain HTTP."),
        ("tls: none", "tls: none\n    image: haproxy@sha256:1", "has a digest: use a tag; spark.lock pins its digest."),
        ("tls: none", "tls: none\n    key: abcdefgh", "`lab.gateway.key` must name a source"),
        ("tls: none", "tls: none\n    addresses: {spark7: 10.0.0.7}", "spark7 is not in the group."),
        ("tls: none", "tls: none\n    addresses: {spark2: 'a b'}", "'a b' is neither an IP address nor a host name."),
        ("tls: none", "tls: none\n    limits: {clients: 9999}", "can take"),
        ("port", "prot", "unknown key `prot`. Did you mean `port`?"),
    ],
)  # fmt: skip
def test_invalid_gateway_is_refused(project: Path, before: str, after: str, refusal: str) -> None:
    write_group(project, text=LAB.replace(before, after, 1))
    with pytest.raises(Refused) as excinfo:
        build_gateway(project)
    assert refusal in str(excinfo.value)


@pytest.mark.parametrize(
    ("recipe", "before", "after", "refusal"),
    [
        ("small", "served-model-name: small", "served-model-name: qwen",
         "the recipes chat (spark1) and small (spark3) both serve `qwen` with different models, Qwen/Qwen3.5-35B and Qwen/Qwen3-4B."),
        ("small", "served-model-name: small", "served-model-name: 'a b'", "the model name 'a b' of small must consist of up to 200 letters, digits"),
        ("small", "container:", "publish: loopback\ncontainer:",
         "the server of spark3 listens on loopback only: spark1 cannot reach it."),
        ("chat", "name: qwen}", "name: gateway}", "`container.name`: 'gateway' is reserved for the gateway's containers."),
    ],
)  # fmt: skip
def test_recipe_without_a_route_is_refused_with_its_line(
    project: Path, recipe: str, before: str, after: str, refusal: str
) -> None:
    write_recipe(project, recipe, {"chat": CHAT, "small": SMALL}[recipe].replace(before, after, 1))
    with pytest.raises(Refused) as excinfo:
        build_gateway(project)
    assert refusal in str(excinfo.value)
    assert str(excinfo.value).startswith(f"recipes/{recipe}.yml:")


TWO_NAMES = CHAT.replace("served-model-name: qwen", "served-model-name: [qwen, claude-sonnet-4-5]")


def test_names_of_recipes_and_group_are_routed(project: Path) -> None:
    write_recipe(project, "chat", TWO_NAMES.replace("claude-sonnet-4-5]", "claude-sonnet-4-5, fast]"))
    write_group(project, "    models: {fast: qwen}\n")
    names = {model.name: model.names for model in build_gateway(project).models}
    assert names == {"qwen": ("qwen", "claude-sonnet-4-5", "fast"), "small": ("small",)}


def test_name_of_the_group_for_an_engine_that_accepts_any(project: Path) -> None:
    (project / "recipes/small.yml").write_text(
        "image: lmsysorg/sglang:v0.5.23\nengine: sglang\nmodel: {id: Qwen/Qwen3-4B, dir: ~/models/small, mount: /models/small}\n"
        "container: {name: small, ports: ['8001:30000']}\nsglang: {served-model-name: small}\n"
    )
    write_group(project, "    models: {fast: small}\n")
    assert build_gateway(project).models[-1].names == ("small", "fast")


@pytest.mark.parametrize(
    ("models", "refusal"),
    [
        ("{fast: qwne}", "hosts/groups.yml:7: `lab.gateway.models`: `fast` refers to `qwne`, which no server serves. Did you mean `qwen`?"),
        ("{small: qwen}", "hosts/groups.yml:7: `lab.gateway.models`: `small` is already a served name of small."),
        ("{'a b': qwen}", "hosts/groups.yml:7: `lab.gateway.models`: `a b` must consist of up to 200 letters, digits"),
        ("{fast: qwen}", "`fast` would be refused by chat's server. Add it to `served-model-name` in recipes/chat.yml, after `qwen`."),
    ],
)  # fmt: skip
def test_invalid_name_of_the_group_is_refused(project: Path, models: str, refusal: str) -> None:
    write_group(project, f"    models: {models}\n")
    with pytest.raises(Refused) as excinfo:
        build_gateway(project)
    assert refusal in str(excinfo.value)


def test_second_name_of_two_models_is_refused(project: Path) -> None:
    write_recipe(project, "chat", TWO_NAMES.replace("claude-sonnet-4-5", "small"))
    with pytest.raises(Refused, match="`small` is a served name of both `small` and `qwen`"):
        build_gateway(project)
    with pytest.raises(Refused, match="`small` is a served name of both"):
        refuse_conflicts(project, "spark1")


ADAPTER = "adapters: [{id: org/sql-lora, name: sql}]\n"


def test_adapters_are_names_of_their_model(project: Path) -> None:
    write_recipe(project, "chat", CHAT + ADAPTER)
    qwen, small = build_gateway(project).models
    assert (qwen.names, qwen.adapters) == (("qwen", "sql"), ("sql",))
    assert small.adapters == ()


@pytest.mark.parametrize(
    ("name", "target", "refusal"),
    [
        ("small", "small", "`small` is a served name of both `small` and `qwen`"),
        ("tables", "small", "`tables` is already a served name of chat"),
        ("sql", "sql", "refers to the adapter `sql`, which can't have another name at a gateway"),
    ],
)
def test_adapter_name_in_use_is_refused(project: Path, name: str, target: str, refusal: str) -> None:
    write_recipe(project, "chat", CHAT + ADAPTER.replace("name: sql", f"name: {name}"))
    write_group(project, f"    models: {{tables: {target}}}\n")
    with pytest.raises(Refused) as excinfo:
        build_gateway(project)
    assert refusal in str(excinfo.value)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (TWO_NAMES, "spark2 also serves `qwen` as `claude-sonnet-4-5`, but spark1 does not"),
        (CHAT + "server_key: {env: SPARK_KEY}\n", "both serve `qwen`, but their servers require different keys"),
        (CHAT + "task: embed\n", "both serve `qwen` for different tasks"),
        (CHAT + ADAPTER.replace("sql-lora", "other"), "both serve the adapter `sql` of `qwen`, from different repositories"),
    ],
    ids=["names", "keys", "tasks", "adapters"],
)  # fmt: skip
def test_servers_of_one_name_must_agree(project: Path, text: str, refusal: str) -> None:
    write_recipe(project, "other", text)
    write_host(project, 2, "recipe: other")
    if "adapters" in text:
        write_recipe(project, "chat", CHAT + ADAPTER)
    with pytest.raises(Refused, match=refusal):
        build_gateway(project)


def refuse_conflicts(project: Path, host: str) -> None:
    inventory = Inventory.load(project)
    gateway_routes.refuse_conflicts(project, inventory, inventory.gateways["lab"], {host})


def test_deploy_without_a_route_is_refused(project: Path) -> None:
    refuse_conflicts(project, "spark3")
    write_recipe(project, "small", SMALL.replace("served-model-name: small", "served-model-name: qwen"))
    with pytest.raises(Refused, match=r"small \(spark3\) and chat \(spark1\) both serve `qwen` with different models"):
        refuse_conflicts(project, "spark3")
    write_recipe(project, "small", SMALL)
    write_group(project, text=LAB.replace("8080", "8000"))
    with pytest.raises(Refused, match="8000 is the port of the server of spark1"):
        refuse_conflicts(project, "spark1")


def test_deploy_ignores_mistakes_of_other_hosts(project: Path) -> None:
    write_recipe(project, "small", "image: 42\n")
    write_group(project, text=LAB.replace("8080", "8000"))
    refuse_conflicts(project, "spark2")


def test_two_gateways_on_one_host_are_refused(project: Path) -> None:
    write_group(project, LAB.replace("lab:", "all2:").replace("8080", "8081"))
    with pytest.raises(Refused, match="spark1 is the gateway of two groups, lab and all2"):
        build_gateway(project)


def test_key_must_match_the_certificate(project: Path) -> None:
    write_certificate(project, "one")
    write_certificate(project, "two")
    text = LAB.replace("tls: none", "tls: {certificate: one.pem, key: {file: KEY}}")
    write_group(project, text=text.replace("KEY", "one.key"))
    assert build_gateway(project).tls
    assert "PRIVATE KEY" in gateway_certificate.read_pem(project, Inventory.load(project).gateways["lab"])
    write_group(project, text=text.replace("KEY", "two.key"))
    with pytest.raises(Refused, match=r"hosts/groups.yml:6: `tls`: the key does not match the certificate one.pem"):
        build_gateway(project)


@pytest.mark.parametrize(
    ("certificate", "key", "refusal"),
    [
        ("old.pem", "old.key", "old.pem expired on "),
        ("missing.pem", "old.key", "cannot read missing.pem: No such file or directory"),
        ("old.key", "old.key", "old.key contains no certificate"),
        ("old.pem", "missing.key", "the file missing.key provides no key"),
        ("old.pem", "old.pem", "not a private key"),
    ],
)
def test_unusable_certificate_is_refused(project: Path, certificate: str, key: str, refusal: str) -> None:
    write_certificate(project, "old", days=-1 if "expired" in refusal else 30)
    text = f"tls: {{certificate: {certificate}, key: {{file: {key}}}}}"
    write_group(project, text=LAB.replace("tls: none", text))
    with pytest.raises(Refused, match=refusal):
        build_gateway(project)


def test_metrics_that_show_progress(project: Path) -> None:
    gateway = build_gateway(project)
    chat, small = gateway.models
    assert {upstream.progress for upstream in (*chat.upstreams, *small.upstreams)} == {chat.upstreams[0].progress}
    progress = chat.upstreams[0].progress
    assert progress is not None and progress.path == "/metrics"
    assert {"vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"} <= {move.name for move in progress.moves}
    assert [request.name for request in progress.requests] == ["vllm:num_requests_running", "vllm:num_requests_waiting"]
    files = render.render_files(gateway)
    assert "qwen spark1 moves vllm:generation_tokens_total\n" in files["progress.list"]
    assert "small spark3 path /metrics\n" in files["progress.list"]
    assert "progress.lua" in files["haproxy.cfg"]
    without = render.render_files(replace(gateway, stuck_s=0))
    assert "progress.lua" not in without and "progress.lua" not in without["haproxy.cfg"]
    other = SMALL.replace("vllm: {served-model-name: small}", "engine: openai\nopenai: {served_name: small}")
    write_recipe(project, "small", other.replace("v0.32.0", "v0.32.1"))
    assert build_gateway(project).models[1].upstreams[0].progress is None, "the engine is unknown"


def test_only_servers_with_wake_on_request_are_woken(project: Path) -> None:
    write_host(project, 3, "on_demand: [{recipe: chat, port: 8003}, {recipe: small, wake: on_request}]")
    qwen, small = build_gateway(project).models
    assert [upstream.wakes for upstream in (*qwen.upstreams, *small.upstreams)] == [False, False, False, True]
    files = render.render_files(build_gateway(project))
    lines = [line for line in files["operations.map"].splitlines() if "/asleep " in line]
    assert lines == ["spark3:PUT:/gateway/servers/small/spark3:small/asleep asleep small/spark3:small"]
    before, _, after = files[render.CONFIG_FILE].partition("\nbackend small\n")
    assert "model_asleep" in after and "model_asleep" not in before


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("serves: [{recipe: small, wake: on_request}]", "`wake` of small: a server under `serves` is always on."),
        ("serves: [{recipe: small, stay_awake: 5m}]", "`stay_awake` of small: a server under `serves` is always on."),
        ("on_demand: [chat, {recipe: small, sleep_after: 5m}]", "`sleep_after` of small has no effect without `wake: on_request`."),
        ("on_demand: [chat, {recipe: small, stay_awake: 5m}]", "`stay_awake` of small has no effect: no server under `on_demand` has `wake: on_request`."),
        ("on_demand: [chat, {recipe: small, wake: always}]", "`wake` of item 2 of `on_demand` must be 'on_request', got 'always'."),
        ("on_demand: [chat, {recipe: small, stay_awake: 5s}]", "`stay_awake` of item 2 of `on_demand`: '5s' is not a duration of at least a minute"),
        ("on_demand: [chat, {recipe: small, wakes: x}]", "unknown key `wakes`. Did you mean `wake`?"),
    ],
)  # fmt: skip
def test_invalid_wake_setting_is_refused_with_its_line(project: Path, line: str, refusal: str) -> None:
    write_host(project, 3, line)
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert str(excinfo.value).startswith(f"hosts/spark3.yml:2: {refusal}")


def test_wake_on_request_without_a_gateway_is_refused(project: Path) -> None:
    (project / "hosts/spark4.yml").write_text("on_demand: [chat, {recipe: small, wake: on_request}]\n")
    refusal = "hosts/spark4.yml:1: `wake: on_request` of small: no gateway routes requests to spark4"
    with pytest.raises(Refused, match=refusal):
        Inventory.load(project)


def test_two_servers_that_one_request_would_wake_are_refused(project: Path) -> None:
    for n in (2, 3):
        write_host(project, n, "on_demand: [{recipe: chat, port: 8003}, {recipe: small, wake: on_request}]")
    with pytest.raises(Refused, match=r"on spark2/small and on spark3/small: a request for `small` would wake both"):
        build_gateway(project)
