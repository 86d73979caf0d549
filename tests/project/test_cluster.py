"""Clusters: groups of hosts that serve one recipe together, and the containers of their members."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.inventory import Inventory

RECIPE = """image: vllm/vllm-openai:v0.32.0
model: {id: Qwen/Qwen3-235B, dir: ~/models/qwen, mount: /models/qwen}
container: {name: qwen}
parallel: {tensor: 2}
"""
PAIR = "pair:\n  hosts: [spark2, spark1]\n  cluster: {recipe: big, head: spark2}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("hosts", "recipes"):
        (tmp_path / folder).mkdir()
    for n in (1, 2, 3):
        link = f"{{interfaces: [enp1s0f1np1, enP2p1s0f1np1], address: 192.168.100.1{n}}}"
        (tmp_path / f"hosts/spark{n}.yml").write_text(f"fabric: {link}\n")
    (tmp_path / "hosts/groups.yml").write_text(PAIR)
    (tmp_path / "recipes/big.yml").write_text(RECIPE)
    return tmp_path


def resolve_container(project: Path, host: str) -> dict[str, Any]:
    variables = recipe.scope(Inventory.load(project).hosts[host], "ops", recipe.load(project, "big"), {})
    container: dict[str, Any] = variables["container"]
    return container


def test_head_is_the_first_member(project: Path) -> None:
    inventory = Inventory.load(project)
    pair = inventory.clusters["pair"]
    assert pair.members == ("spark2", "spark1")
    assert pair.addresses == ("192.168.100.12", "192.168.100.11")
    assert [inventory.hosts[name].recipe for name in ("spark1", "spark2", "spark3")] == ["big", "big", None]
    assert [host.name for host in inventory.match("pair")] == ["spark1", "spark2"]


def test_containers_of_members_differ_only_in_rank_and_addresses(project: Path) -> None:
    head, worker = resolve_container(project, "spark2"), resolve_container(project, "spark1")
    assert head["network"] == worker["network"] == "host"
    assert head["image"] == worker["image"]
    assert not head.get("privileged")
    assert "/dev/infiniband" in " ".join(worker["devices"])
    words = " ".join(worker["command"])
    assert "--node-rank 1" in words and "--headless" in words and "--master-addr 192.168.100.12" in words
    assert worker["env"]["VLLM_HOST_IP"] == "192.168.100.11"
    assert worker["env"]["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert "--headless" not in head["command"]
    assert {key for key in head if head[key] != worker[key]} == {"command", "env", "labels", "ports"}


def test_baseline_names_the_members(project: Path) -> None:
    names = recipe.scope(Inventory.load(project).hosts["spark2"], "ops", recipe.load(project, "big"), {})
    assert names["serve"]["baseline_key"]["members"] == ["spark2", "spark1"]


@pytest.mark.parametrize(
    ("groups", "refusal"),
    [
        ("pair:\n  hosts: [spark1, spark2]\n  cluster: {recipe: big, head: spark3}\n",
         "hosts/groups.yml:3: `pair.cluster.head`: spark3 is not in the group. Add it to `pair.hosts`."),
        ("pair:\n  hosts: [spark1, spark2]\n  cluster: {recipe: big, head: sparc1}\n",
         "hosts/groups.yml:3: `pair.cluster.head`: no host named 'sparc1'. Did you mean `spark1`?"),
        ("pair:\n  hosts: [spark1]\n  cluster: {recipe: big, head: spark1}\n", "the cluster pair has fewer than two hosts."),
        ("all:\n  cluster: {recipe: big, head: spark1}\n", "`all` cannot be a cluster."),
        (PAIR + "two:\n  hosts: [spark2, spark3]\n  cluster: {recipe: big, head: spark3}\n",
         "spark2 is in two clusters, pair and two."),
        ("pair:\n  hosts: [spark1, spark2]\n  cluster: {recipe: big, head: spark1, port: 29499}\n",
         "`port` and `barrier_port` are the same."),
        ("pair:\n  hosts: [spark1, spark2]\n  cluster: {recipe: big}\n", "hosts/groups.yml:3: `head` is missing: "),
    ],
)  # fmt: skip
def test_invalid_cluster_is_refused(project: Path, groups: str, refusal: str) -> None:
    (project / "hosts/groups.yml").write_text(groups)
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert refusal in str(excinfo.value)


@pytest.mark.parametrize(
    ("link", "refusal"),
    [
        ("interfaces: [a b], address: 10.0.0.1", "item 1 of `fabric.interfaces` must be text that matches"),
        ("interfaces: [], address: 10.0.0.1", "`fabric.interfaces`"),
        ("interfaces: [eth0], address: spark2", "is not an IP address"),
        ("interfaces: [eth0], address: 0.0.0.0", "is not an address that another host can reach"),
        ("interfaces: [eth0], adress: 10.0.0.1", "unknown key `adress`. Did you mean `address`?"),
    ],
)
def test_invalid_fabric_is_refused(project: Path, link: str, refusal: str) -> None:
    (project / "hosts/spark1.yml").write_text(f"fabric: {{{link}}}\n")
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert refusal in str(excinfo.value) and "hosts/spark1.yml:1" in str(excinfo.value)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (("parallel: {tensor: 2}", "parallel: {tensor: 1}"), "recipes/big.yml:4: `parallel` splits the model over one host."),
        (("parallel: {tensor: 2}", "parallel: {tensor: 3}"),
         "recipes/big.yml:4: the recipe big is for 3 hosts (`parallel`), but the cluster pair has 2."),
        (("parallel: {tensor: 2}", ""), "the recipe big is for one host, but the cluster pair has 2."),
        (("{name: qwen}", "{name: qwen, network: bridge}"), "recipes/big.yml:3: `container.network` must be `host` with `parallel`"),
        (("{name: qwen}", "{name: qwen, env: {VLLM_HOST_IP: 10.0.0.9}}"), "`container.env.VLLM_HOST_IP` cannot be set with `parallel`"),
        (("{name: qwen}", "{name: qwen, stop_timeout_s: 10}"), "`container.stop_timeout_s` must be at least"),
        (("parallel", "vllm: {nnodes: 2}\nparallel"), "recipes/big.yml:4: `vllm.nnodes` cannot be set with `parallel`"),
        (("parallel", "vllm: {tensor-parallel-size: 2}\nparallel"), "`vllm.tensor-parallel-size` cannot be set with `parallel`"),
        (("parallel: {tensor: 2}", "parallel: {tensor: 2}\nengine: sglang\nsglang: {}"),
         "recipes/big.yml:4: `parallel` cannot be used with SGLang"),
        (("parallel", "vllm: {port: 29499}\nparallel"), "`cluster.barrier_port`: the server itself listens on port 29499."),
    ],
)  # fmt: skip
def test_recipe_that_does_not_fit_its_cluster_is_refused(project: Path, change: tuple[str, str], refusal: str) -> None:
    (project / "recipes/big.yml").write_text(RECIPE.replace(*change))
    with pytest.raises(Refused) as excinfo:
        resolve_container(project, "spark1")
    assert refusal in str(excinfo.value)


@pytest.mark.parametrize(
    ("host", "text", "refusal"),
    [
        ("spark1", "address: x\nrecipe: small\n", "hosts/spark1.yml:2: spark1 is a member of the cluster pair"),
        ("spark2", "address: x\n", "hosts/spark2.yml: spark2 has no `fabric`"),
        ("spark1", "fabric: {interfaces: [enp1s0f1np1], address: 192.168.100.12}\n",
         "spark2 and spark1 have the same `fabric.address`, 192.168.100.12."),
    ],
    ids=["recipe of its own", "no fabric", "same address"],
)  # fmt: skip
def test_invalid_member_is_refused(project: Path, host: str, text: str, refusal: str) -> None:
    (project / f"hosts/{host}.yml").write_text(text)
    with pytest.raises(Refused) as excinfo:
        resolve_container(project, "spark1")
    assert refusal in str(excinfo.value)


def test_recipe_for_two_hosts_is_refused_on_a_single_host(project: Path) -> None:
    (project / "hosts/groups.yml").write_text("{}\n")
    (project / "hosts/spark3.yml").write_text("address: x\nrecipe: big\n")
    with pytest.raises(Refused) as excinfo:
        resolve_container(project, "spark3")
    refusal = str(excinfo.value)
    assert "hosts/spark3.yml:2: the recipe big is for 2 hosts (`parallel`), but spark3 is not in a cluster." in refusal
    assert "`pair: {hosts: [spark3, ...], cluster: {recipe: big, head: spark3}}`" in refusal
