"""spark.lock: unusual names are kept, and dangerous or invalid values are refused with their line."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.plans import preparation
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.project import lockfile
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import validate
from sparkwright.project.recipe.models import RecipeFile

MODEL_ID = "Qwen/Qwen3.5-35B-A3B-FP8"
KEY = f"{MODEL_ID}@main"
ODD = (
    "a, b.json", "x[1].safetensors", "ü #1.txt", "yes", "'q': x", "null", "1e3", "0x10", "2026-01-01", "a: b", "- x", "{x}",
    "? y", "&a", "*a", "!t", "%x", "@x", "`x", '"q"', "~", "=", "<<", " lead", "trail ", "[", "]", "}", ",", "#", "|", ">",
    "a" * 246, "a" * 200 + " " + "b" * 40, "sub dir/モデル 💥.gguf", "\ue000", "\U0010ffff", "a\u00a0b", "A", "a",
)  # fmt: skip


def lock_entry(*names: str, **fields: Any) -> dict[str, Any]:
    rows = [{"path": name, "size_bytes": 1, "sha256": None, "blob_id": "b" * 40, **fields} for name in names]
    return {"commit": "a" * 40, "config": {"layer_types": ["full_attention"] * 40, "text_config": {}}, "files": rows}


def test_unusual_names_are_written_and_read_back(tmp_path: Path) -> None:
    first = lockfile.Lock().with_model(MODEL_ID, "main", lock_entry(*ODD))
    first.save(tmp_path)
    text = (tmp_path / "spark.lock").read_text()
    assert sum(line.startswith("    - {path: ") and line.endswith("}") for line in text.splitlines()) == len(ODD)
    assert lockfile.load(tmp_path) == first
    lockfile.load(tmp_path).save(tmp_path)
    assert (tmp_path / "spark.lock").read_text() == text


def test_revision_with_an_at_sign(tmp_path: Path) -> None:
    lockfile.Lock().with_model("a/b", "v1@2", lock_entry("x")).save(tmp_path)
    assert lockfile.load(tmp_path).model("a/b", "v1@2")


def test_lock_has_a_line_for_each_file(tmp_path: Path) -> None:
    digest = "sha256:" + "d" * 64
    manifest = {"platform": "linux/arm64", "digest": digest, "config": digest, "size_bytes": 1}
    image = {"digest": digest, "platforms": ["linux/arm64"], "manifests": [manifest]}
    lockfile.Lock().with_image("a/b:v1", image).with_model("a/b", "main", lock_entry("config.json")).save(tmp_path)
    text = (tmp_path / "spark.lock").read_text()
    assert f"    - {{platform: linux/arm64, digest: {digest}, config: {digest}, size_bytes: 1}}\n" in text
    assert f"    - {{path: config.json, size_bytes: 1, sha256: null, blob_id: {'b' * 40}}}\n" in text
    assert max(map(len, text.splitlines())) < 250


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("path: two", 'path: "../../.ssh/authorized_keys"', "'../../.ssh/authorized_keys' leaves its folder"),
        ("path: two", "path: /etc/cron.d/x", "leaves its folder"),
        ("path: two", 'path: "a\\\\b"', "has a backslash"),
        ("path: two", 'path: "a\\e]52;c;aGk="', r"'a\x1b]52;c;aGk=' has a control character"),
        ("path: two", 'path: "\\ud800"', ""),
        ("path: two", "path: .before/x", "is in a folder reserved"),
        ("path: two", "path: 7", "must be a string"),
        ("path: two", "path: one", "the file 'one' twice"),
        ("path: two", "path: one/x", "'one' as a file and as a folder"),
        ("size_bytes: 1", "size_bytes: -1", "got -1"),
        ("size_bytes: 1", "size_bytes: 100000000000000000000", "out of range"),
        ("size_bytes: 1", "size_bytes: 1.0", "integer"),
        ("sha256: null", "sha256: ../x", "sha256"),
        (f"blob_id: {'b' * 40}", "blob_id: null", "neither sha256 nor blob_id"),
        (KEY, "../../x@main", "is not a model's name on the hub"),
        (KEY, "a/b/c@main", "is not a model's name on the hub"),
        (KEY, "a/b@-x", "is not a valid git branch, tag or commit"),
        (KEY, "a/b", "has no revision"),
        (KEY, '"a/b@x\\e[2J"', r"x\x1b[2J"),
    ],
)
def test_invalid_value_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    lockfile.Lock().with_model(MODEL_ID, "main", lock_entry("one", "two")).save(tmp_path)
    text = (tmp_path / "spark.lock").read_text()
    (tmp_path / "spark.lock").write_text(text.replace(old, new, 1))
    with pytest.raises(Refused) as excinfo:
        lockfile.load(tmp_path)
    assert excinfo.value.exit is Exit.REFUSED
    assert message in str(excinfo.value) and str(excinfo.value).isprintable()
    assert "spark.lock:" in excinfo.value.where


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="20000"):
        lockfile.Lock().with_model("a/b", "main", lock_entry(*(f"f{n}" for n in range(20_001))))


@pytest.mark.parametrize(
    ("image", "line", "message"),
    [
        (f"a/../b:v1:\n    digest: sha256:{'0' * 64}", 3, "is not REPOSITORY:TAG"),
        ("a/b:v1:\n    digest: sha256:short", 4, "digest"),
    ],
)
def test_invalid_image_is_refused_with_its_line(tmp_path: Path, image: str, line: int, message: str) -> None:
    (tmp_path / "spark.lock").write_text(f"schema: 1\nimages:\n  {image}\n")
    with pytest.raises(Refused, match=message) as excinfo:
        lockfile.load(tmp_path)
    assert excinfo.value.where.endswith(f"spark.lock:{line}")


@pytest.mark.parametrize(
    "answer",
    [{"digest": "../x"}, {"platforms": ["\x1b[2J"]}, {"created": "x" * 100}, {"manifests": [{"platform": "a"}]}, {}],
)
def test_invalid_entry_of_an_image_from_a_host_is_refused(answer: dict[str, object]) -> None:
    entry = {"digest": f"sha256:{'0' * 64}", **answer} if answer else {}
    with pytest.raises(Refused, match="a/b:v1"):
        lockfile.Lock().with_image("a/b:v1", entry)


@pytest.mark.parametrize(
    "answer", [{}, {"commit": "x", "files": []}, lock_entry("../x"), lock_entry("a", size_bytes="1")]
)
def test_invalid_entry_of_a_model_from_a_host_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(Refused) as excinfo:
        lockfile.Lock().with_model("a/b", "main", answer)
    assert excinfo.value.where.startswith("a/b@main")


@pytest.mark.parametrize("model_id", ["../x/y", "a/b/c", '"a/b\\e[2J"'])
def test_invalid_model_name_in_a_recipe_is_refused(tmp_path: Path, model_id: str) -> None:
    text = f"image: a:1\nmodel:\n  id: {model_id}\n  dir: ~/m\n  mount: /m\ncontainer:\n  name: ab\n"
    with pytest.raises(Refused, match=r"r.yml:3: .*is not a model's name on the hub") as excinfo:
        validate(RecipeFile, document.parse(text, Path("r.yml")))
    assert str(excinfo.value).isprintable()


@pytest.mark.parametrize(
    "urls",
    [
        None, "http://127.0.0.1:1", ["http://127.0.0.1:1"] * 65, ["file:///etc/passwd"], ["http://169.254.169.254:80/latest"],
        ["http://127.0.0.1:80@evil:1"], [7],
    ],
)  # fmt: skip
def test_urls_of_a_peer_must_be_addresses(urls: object) -> None:
    assert preparation.parse_peer_urls({"urls": ["http://10.0.0.2:4711"]}, "spark1") == ["http://10.0.0.2:4711"]
    with pytest.raises(Failed):
        preparation.parse_peer_urls({"urls": urls}, "spark1")


@pytest.mark.parametrize("line", [1, 3])
def test_merge_conflict_is_reported(tmp_path: Path, line: int) -> None:
    lockfile.Lock().with_model(MODEL_ID, "main", lock_entry("a")).save(tmp_path)
    path = tmp_path / lockfile.FILE_NAME
    lines = path.read_text().splitlines()
    lines[line - 1 : line - 1] = ["<<<<<<< HEAD", "schema: 1", "=======", ">>>>>>> theirs"]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(Refused, match="merge conflict") as excinfo:
        lockfile.load(tmp_path)
    assert excinfo.value.where == f"{path}:{line}" and "run `invoke lock`" in excinfo.value.fix
