"""Hosts, groups, patterns and secrets, and the errors for mistakes in them."""

from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.inventory import Inventory


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").mkdir()
    for n in (1, 2, 3):
        (tmp_path / f"hosts/spark{n}.yml").write_text("groups: [lab]\n")
    (tmp_path / "hosts/desk.yml").write_text("connection: local\nvars: {ollama: leave}\n")
    (tmp_path / "hosts/groups.yml").write_text(
        "all:\n  vars: {ollama: unload, reserve_gib: 4}\n  user: ops\n"
        "lab:\n  vars: {reserve_gib: 8}\ngpu:\n  hosts: [spark1, desk]\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("spark1,spark2", ["spark1", "spark2"]),
        ("lab", ["spark1", "spark2", "spark3"]),
        ("all", ["desk", "spark1", "spark2", "spark3"]),
        ("lab:!spark3", ["spark1", "spark2"]),
        ("!lab", ["desk"]),
        ("lab:&gpu", ["spark1"]),
        ("spark*", ["spark1", "spark2", "spark3"]),
        ("spark[12]:desk", ["desk", "spark1", "spark2"]),
    ],
)
def test_patterns_of_ansible(project: Path, pattern: str, names: list[str]) -> None:
    assert [host.name for host in Inventory.load(project).match(pattern)] == names


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("sparc1", "no host or group named 'sparc1'. Did you mean `spark1`?"), ("lab:!lab", "matches no hosts")],
)
def test_pattern_without_hosts_is_refused(project: Path, pattern: str, message: str) -> None:
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project).match(pattern)
    assert message in str(excinfo.value)


def test_variables_of_host_override_groups_and_all(project: Path) -> None:
    hosts = Inventory.load(project).hosts
    assert hosts["spark1"].vars == {"ollama": "unload", "reserve_gib": 8}
    assert hosts["desk"].vars == {"ollama": "leave", "reserve_gib": 4}
    assert hosts["spark1"].user == "ops"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adress: x\n", "hosts/spark1.yml:1: unknown key `adress`. Did you mean `address`?"),
        ("address: x\nport: ssh\n", "hosts/spark1.yml:2: `port` must be an integer"),
        ("connection: telnet\n", "hosts/spark1.yml:1: `connection` must be 'ssh', 'local' or 'sandbox', got 'telnet'"),
        ("address: x\naddress: y\n", "hosts/spark1.yml:2: duplicate key `address`."),
        ("address: [\n", "hosts/spark1.yml:2: not YAML"),
        ("- address\n", "hosts/spark1.yml:1: must be a mapping, got a list."),
        ("secrets: {T: {env: A, file: b}}\n", "hosts/spark1.yml:1: `secrets.T`: set exactly one of"),
        ("secrets:\n  VLLM_API_KEY: {env: A}\n", "hosts/spark1.yml:2: `secrets.VLLM_API_KEY`: a server key belongs in the recipe."),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_its_line(project: Path, text: str, message: str) -> None:
    (project / "hosts/spark1.yml").write_text(text)
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert message in str(excinfo.value)


def test_hosts_that_would_be_the_same_simulated_spark_are_refused(project: Path) -> None:
    """Otherwise the deploy of one replaces the server of the other."""
    hosts = project / "hosts"
    for name in ("play", "box2", "box3"):
        (hosts / f"{name}.yml").write_text("connection: sandbox\n")
    Inventory.load(project)
    (hosts / "toy.yml").write_text("user: spark\nconnection: sandbox\n")
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert str(excinfo.value).startswith(
        "hosts/toy.yml:2: the sandboxes play and toy would be the same simulated Spark."
    )


def test_empty_name_of_a_secret_is_allowed(project: Path) -> None:
    (project / "hosts/spark1.yml").write_text('secrets: {"": {env: A}}\n')
    assert list(Inventory.load(project).hosts["spark1"].secret_sources) == [""]


def test_secrets_from_environment_file_and_command(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "one-secret")
    (project / "key").write_text("two-secrets\n")
    sources = (
        f"A: {{env: TOKEN}}, B: {{file: {project}/key}}, C: {{command: [echo, three-secrets]}}, D: {{env: NOT_SET}}"
    )
    (project / "hosts/spark1.yml").write_text(f"secrets: {{{sources}}}\n")
    inventory = Inventory.load(project)
    secrets = secret_source.read_secrets(inventory.hosts["spark1"])
    revealed = {name: secret.reveal() for name, secret in secrets.items()}
    assert revealed == {"A": "one-secret", "B": "two-secrets", "C": "three-secrets"}
    assert "one" not in str(secrets)


def test_short_secret_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "1234567")
    (project / "hosts/spark1.yml").write_text("secrets: {A: {env: TOKEN}}\n")
    inventory = Inventory.load(project)
    with pytest.raises(Refused, match="the secret A is shorter than 8 characters") as excinfo:
        secret_source.read_secrets(inventory.hosts["spark1"])
    assert excinfo.value.where == "the environment variable TOKEN"
    assert "1234567" not in str(excinfo.value)
