"""Damaged hosts, groups, recipes, playbooks, locks and templates are read, or refused with one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.errors import Exit, Refused
from sparkwright.project import lockfile
from sparkwright.project.documents import document
from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.playbook import playbook
from sparkwright.project.recipe import recipe
from tests.fuzz.harness import damaged_texts, feed, via_file

PROJECT = Path(__file__).parents[2]
HOST = b"""address: 192.0.2.7
groups: [sparks, &g lab]
port: 2222
recipe: qwen3.5-35b
env: {HF_ENDPOINT: "http://mirror.lan"}
secrets:
  HF_TOKEN: {env: HF_TOKEN}
vars: &v
  utilization: 0.90
  since: 2024-01-01
  more: {a: *g, "b c": [1, 0x1f, 1_000, ~, yes]}
"""
GROUPS = b"all:\n  user: nvidia\nlab:\n  hosts: [spark1]\n  min_serving: 1\n  vars: {a: 1.0e+3}\n"
LOCK = (
    b"schema: 1\nimages:\n  vllm/vllm-openai:v1:\n    digest: sha256:" + b"0" * 64 + b"\n    platforms: [linux/arm64]\n"
    b"models:\n  Q/W@main:\n    commit: " + b"a" * 40 + b"\n    config: {num_hidden_layers: 40}\n    files:\n"
    b"    - {path: config.json, size_bytes: 12, blob_id: " + b"b" * 40 + b"}\n"
)


def read_seeds(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((PROJECT / folder).glob("*.yml"))]


def make_project(tmp_path: Path) -> Path:
    for folder in ("hosts", "recipes"):
        (tmp_path / folder).mkdir()
    shutil.copytree(PROJECT / "playbooks/parts", tmp_path / "playbooks/parts")
    return tmp_path


def via_project_file(path: Path, read: Callable[[], object]) -> Callable[[bytes], None]:
    """Return a reader that writes its case to a file first, and must refuse it with a single, short line."""

    def check_refusal() -> None:
        try:
            read()
        except Refused as refused:
            assert refused.exit == Exit.REFUSED
            assert "\n" not in refused.message, refused.message
            assert len(refused.message) < 1000, refused.message
            raise

    return via_file(path, check_refusal)


def test_hosts(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    (root / "hosts/groups.yml").write_bytes(GROUPS)
    read = via_project_file(root / "hosts/spark1.yml", lambda: Inventory.load(root).match("all"))
    feed(read, damaged_texts([HOST, *read_seeds("hosts")]))


def test_groups(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    (root / "hosts/spark1.yml").write_bytes(HOST)
    read = via_project_file(root / "hosts/groups.yml", lambda: Inventory.load(root).match("all"))
    feed(read, damaged_texts([GROUPS]))


def test_reading_the_ssh_hosts_of_a_damaged_inventory_never_fails(tmp_path: Path) -> None:
    root = make_project(tmp_path)

    def read(data: bytes) -> None:
        (root / "hosts/spark1.yml").write_bytes(data)
        (root / "hosts/groups.yml").write_bytes(data[::-1] if len(data) % 2 else GROUPS)
        patterns.read_ssh_hosts(root, "all")

    feed(read, damaged_texts([HOST, GROUPS]))


def test_recipes(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    read = via_project_file(root / "recipes/damaged.yml", lambda: recipe.load(root, "damaged"))
    feed(read, damaged_texts(read_seeds("recipes")))


def test_playbooks(tmp_path: Path) -> None:
    path = make_project(tmp_path) / "playbooks/damaged.yml"

    def read() -> None:
        for play in playbook.load(path, tmp_path).plays:
            play.uses({"facts"})

    feed(via_project_file(path, read), damaged_texts(read_seeds("playbooks")))


def test_locks(tmp_path: Path) -> None:
    feed(via_project_file(tmp_path / lockfile.FILE_NAME, lambda: lockfile.load(tmp_path)), damaged_texts([LOCK]))


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "where", "sentence"),
    [
        (b"a: &a [*a]", ":1", "the alias *a refers to itself"),
        (BOMB.encode(), ":1", "aliases expand to too many values here"),
        (b"a: *b", ":1", "no anchor &b"),
        (b"x:\n  " + b"[" * 100_000, ":2", "more than 64 levels deep"),
        (b"- " * 100_000, ":1", "more than 64 levels deep"),
        (b"a: 1\nb: !!python/object/apply:os.system [id]", ":2", "the tag !!python/object/apply:os.system"),
        (b"a: !!binary aGk=", ":1", "the tag !!binary"),
        (b"a: " + b"9" * 5000, ":1", "out of range"),
        (b"a: 1.0e+999", ":1", "not finite"),
        (b"a: .nan", ":1", "not finite"),
        (b"a: 1\nb: 2\na: 3", ":3", "duplicate key `a`"),
        (b"a: 1\nb: \xff", ":2", "not a UTF-8 text file"),
        (b"a: 1\nb: \x00", ":2", "control character"),
        (b"a:\n\tb: 1", ":2", "tabs are not allowed"),
        (b"? [a]\n: 1", ":1", "a key must be plain text"),
        (b"a: 1\n---\nb: 2", ":2", "a file may have only one"),
        (b"#" * (1 << 20) + b"\n", "", "more than 1 MiB"),
        (b"[" + b"1," * 400_000 + b"]", ":1", "more than"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_a_harmful_document_is_refused_with_its_line(tmp_path: Path, data: bytes, where: str, sentence: str) -> None:
    path = tmp_path / "a.yml"
    path.write_bytes(data)
    with pytest.raises(Refused) as excinfo:
        document.load(path)
    assert excinfo.value.where == f"{path}{where}"
    assert sentence in excinfo.value.message
    assert "\n" not in str(excinfo.value)


def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.yml").symlink_to("/dev/zero")
    with pytest.raises(Refused, match="not a regular file"):
        document.load(tmp_path / "a.yml")


def test_a_harmless_document_with_unusual_syntax_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_bytes(b"\xef\xbb\xbfa: &x {b: 1, c: 0.90}\r\nd: *x\r\ne: 2024-01-01\nf: ! 12\n")
    read = document.load(path)
    assert read.data == {"a": {"b": 1, "c": 0.9}, "d": {"b": 1, "c": 0.9}, "e": "2024-01-01", "f": "12"}
    assert str(read.data["d"]["c"]) == "0.90"
    assert read.where("d", "c") == f"{path}:1"
    assert read.where("e") == f"{path}:3"
