"""`files` of a recipe: rendered or copied, stored under the hash of their content."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.plans import recipes
from sparkwright.errors import Exit, Refused
from sparkwright.project import ejection
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from tests.project.recipes import TOP, load_text, resolve_variables

HEAD = """\
image: ghcr.io/some/image:tag
model: {id: a/b, dir: ~/models/b, mount: /models/b}
container:
  name: served
  volumes: ["/srv/cache:/cache"]
files:
"""
JINJA = "{% for m in messages %}{{ m.content }}{% endfor %}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("recipes", "templates", "chat"):
        (tmp_path / name).mkdir()
    (tmp_path / "templates/options.yml.j2").write_text("name: {{ served_name }}\nfor: {{ host.name }} {{ limit }}\n")
    (tmp_path / "chat/one.jinja").write_text(JINJA)
    return tmp_path


def resolve_files(folder: Path, files: str, *, limit: int = 7) -> dict[str, Any]:
    loaded_recipe = load_text(folder, HEAD + "".join(f"  {line}\n" for line in files.splitlines()))
    return resolve_variables(loaded_recipe, recipe="one", vars={"limit": limit})


BOTH = "/etc/engine/options.yml: {template: options.yml.j2}\n/etc/engine/chat.jinja: {file: chat/one.jinja}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_template_is_rendered_and_file_is_copied(folder: Path) -> None:
    names = resolve_files(folder, BOTH)
    rendered = "name: /models/b\nfor: spark1 7"
    (options, chat) = (names["container"]["files"][f"/etc/engine/{item}"] for item in ("options.yml", "chat.jinja"))
    assert names["recipe_files"][options].startswith(rendered)
    assert names["recipe_files"][chat] == JINJA
    assert chat == digest(JINJA)
    assert names["serve"]["baseline_key"]["files"], "the content may change the speed"


def test_container_differs_with_the_content(folder: Path) -> None:
    first, again, other = (resolve_files(folder, BOTH, limit=limit)["container"] for limit in (7, 7, 8))
    assert first == again
    assert first["files"] != other["files"]


def test_recipe_without_files_has_no_keys_for_them(folder: Path) -> None:
    names = resolve_variables(load_text(folder, HEAD.replace("files:\n", "")))
    assert "files" not in names["container"]
    assert "files" not in names["recipe"]
    assert "files" not in names["serve"]["baseline_key"]


def test_mounted_templates_of_shipped_recipes_are_released_versions() -> None:
    """Their content, comments included, is part of the container: an upgrade alone must not restart a server."""
    recipes_data = [yaml.safe_load(path.read_text()) for path in (TOP / "recipes").rglob("*.yml")]
    files = [file for data in recipes_data for file in data.get("files", {}).values()]
    assert files
    for file in files:
        content = (TOP / "templates" / file["template"]).read_bytes()
        git_id = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        assert git_id[: ejection.HASH_CHARS] in ejection.load_earlier_copies()[f"templates/{file['template']}"]


def test_script_mounts_files(folder: Path) -> None:
    (folder / "templates/docker-run.sh.j2").write_text((TOP / "templates/docker-run.sh.j2").read_text())
    resolve_files(folder, "/etc/engine/chat.jinja: {file: chat/one.jinja}")
    host = Host("spark", "spark", recipe="one", user="ops")
    script = recipes.render_docker_run_script(host, Project(folder))
    kept = f"/home/ops/.local/state/sparkwright/recipe_files/{digest(JINJA)}"
    assert f"--mount type=bind,source={kept},target=/etc/engine/chat.jinja,readonly" in script


MISTAKES = {
    "/etc/../etc/passwd: {file: chat/one.jinja}": "7: `files`: '/etc/../etc/passwd' must not contain `.` or `..`",
    "etc/x: {file: chat/one.jinja}": "7: `files`: 'etc/x' must be a path in the container",
    "/etc/a,readonly=false: {file: chat/one.jinja}": "7: `files`: '/etc/a,readonly=false' must be a path in the container",
    "/etc/passwd: {file: chat/one.jinja}": "7: `files`: '/etc/passwd' must not be in /etc/passwd, which belongs to the system",
    "/usr/bin/python3: {file: chat/one.jinja}": "7: `files`: '/usr/bin/python3' must not be in /usr/bin",
    "/models/b/config.json: {file: chat/one.jinja}": "7: `files`: '/models/b/config.json' overlaps the model's folder",
    "/cache/x: {file: chat/one.jinja}": "7: `files`: '/cache/x' overlaps the volume '/srv/cache:/cache'",
    "/etc/a: {file: chat/one.jinja}\n/etc/a/b: {file: chat/one.jinja}": "8: `files`: '/etc/a/b' is below the file '/etc/a'",
    "/etc/x: {}": "7: `files./etc/x`: set either `template` or `file`.",
    "/etc/x: {file: a, template: b}": "7: `files./etc/x`: set either `template` or `file`.",
    "/etc/x: {file: /etc/passwd}": "7: `files./etc/x`: '/etc/passwd' is not a path in the project.",
    "/etc/x: {src: a}": "7: unknown key `src`.",
    "/etc/x: {file: ../outside}": "7: `files./etc/x`: the file is outside the project.",
    "/etc/x: {file: linked}": "7: `files./etc/x`: the file is outside the project.",
    "/etc/x: {file: chat}": "7: `files./etc/x`: no such file: chat.",
    '/etc/x: {file: "a\\0b"}': "7: `files./etc/x`: no such file: a\\x00b.",
    '/etc/x: {template: "a\\0b"}': "7: `files./etc/x`: no such file: templates/a\\x00b.",
    f"/etc/x: {{file: {'a' * 5000}}}": "7: `files./etc/x`: no such file: aaa",
    f"/etc/x: {{template: {'a' * 5000}}}": "7: `files./etc/x`: no such file: templates/aaa",
    "/etc/x: {template: none.j2}": "7: `files./etc/x`: no such file: templates/none.j2.",
}


@pytest.mark.parametrize(("files", "message"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistake_is_refused_with_its_line(folder: Path, files: str, message: str) -> None:
    (folder.parent / "outside").write_text("x")
    (folder / "linked").symlink_to(folder.parent / "outside")
    with pytest.raises(Refused) as excinfo:
        resolve_files(folder, files)
    assert str(excinfo.value).startswith(f"recipes/one.yml:{message}"), str(excinfo.value)
    assert excinfo.value.exit == Exit.REFUSED


CONTENTS = {
    "a: 1\nhf_token: hf_0123456789abcdefghij\n": r"chat/two:2: `files./etc/x` contains what looks like a secret.",
    "# sk-0123456789abcdefghij\n": r"chat/two:1: `files./etc/x` contains",
    'a: 1\n  "api_key": "correct-horse-battery"\n': r"chat/two:2: `files./etc/x` contains",
    "export DB_PASSWORD=correct-horse-battery\n": r"chat/two:1: `files./etc/x` contains",
    "a\nb\xff": r"chat/two:2: not a UTF-8 text file",
    "x" * ((1 << 20) + 1): r"chat/two: the file .*1",
}


@pytest.mark.parametrize(("text", "message"), CONTENTS.items(), ids=range(len(CONTENTS)))
def test_secret_or_oversized_content_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "chat/two").write_bytes(text.encode("latin-1"))
    with pytest.raises(Refused) as excinfo:
        resolve_files(folder, "/etc/x: {file: chat/two}")
    assert re.match(message, str(excinfo.value)), str(excinfo.value)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096000000\n", "bos_token: <|begin_of_text|>\n", "eos_token = '<|im_end|>'\n", "{{ bos_token }}\n", JINJA,
    ],
)  # fmt: skip
def test_content_that_only_resembles_a_secret_is_accepted(folder: Path, text: str) -> None:
    (folder / "chat/two").write_text(text)
    names = resolve_files(folder, "/etc/x: {file: chat/two}")
    assert names["recipe_files"] == {digest(text): text}


def test_mistake_in_a_template_is_refused_with_its_line(folder: Path) -> None:
    (folder / "templates/options.yml.j2").write_text("a: 1\nb: {{ nobody }}\n")
    with pytest.raises(Refused, match=r"templates/options.yml.j2:2: .*nobody"):
        resolve_files(folder, "/etc/x: {template: options.yml.j2}")


@pytest.mark.parametrize(("field", "expected"), [("", "fit"), (", page_cache: drop", "drop")])
def test_page_cache_of_the_recipe_overrides_that_of_the_host(folder: Path, field: str, expected: str) -> None:
    text = HEAD.replace("mount: /models/b", f"mount: /models/b{field}").removesuffix("files:\n")
    assert resolve_variables(load_text(folder, text), vars={"page_cache": "fit"})["page_cache"] == expected


@pytest.mark.parametrize("key", ["flags", "args"])
def test_flags_under_a_wrong_key_name_the_right_one(folder: Path, key: str) -> None:
    text = HEAD.removesuffix("files:\n") + f"{key}: {{max-model-len: 4096}}\n"
    with pytest.raises(Refused, match=f"unknown key `{key}`. The engine's flags belong under its name, e.g. `vllm:`."):
        load_text(folder, text)
