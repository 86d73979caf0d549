"""The right name that is suggested for an unknown one."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sparkwright.project import shipped_files, starter
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.lockfile import Lock
from sparkwright.project.shipped_files import SCHEMA_MARK
from tests.project.importing.forms import import_recipe


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [
        ("pair", ["spark1", "sandbox-pair", "sandbox"], "Did you mean `sandbox-pair`?"),
        ("sparc1", ["spark1", "spark2"], "Did you mean `spark1`?"),
        ("qwen", ["qwen3.5-35b-200k", "qwen3.5-35b", "glm"], "Did you mean `qwen3.5-35b`?"),
        ("ab", ["big-lab-of-many"], "Available: big-lab-of-many."),
        ("xyz", [], ""),
    ],
)
def test_a_part_of_a_name_is_that_name_and_else_the_nearest_spelling(word: str, known: list[str], answer: str) -> None:
    assert suggest_name(word, known) == answer


# The first line of each YAML file leads an editor to a schema in the project itself, and the file fits it.


SHIPPED = [
    path.relative_to(shipped_files.shipped_folder())
    for folder in ("hosts", "recipes", "playbooks")
    for path in sorted((shipped_files.shipped_folder() / folder).rglob("*.yml"))
]


@functools.cache
def load_validator(schema: str) -> Any:
    """Return the validator of a schema's text, which takes half a second to be checked itself."""
    data = json.loads(schema)
    kind = jsonschema.validators.validator_for(data)
    kind.check_schema(data)
    return kind(data)


def check_first_line_schema(path: Path) -> Path:
    """The schema that the file's first line names; it fits it."""
    text = path.read_text()
    first, _, _ = text.partition("\n")
    assert first.startswith(SCHEMA_MARK), path
    schema = (path.parent / first.removeprefix(SCHEMA_MARK)).resolve()
    load_validator(schema.read_text()).validate(yaml.safe_load(text))
    return schema


@pytest.mark.parametrize("name", SHIPPED, ids=str)
def test_a_shipped_file_fits_the_schema_that_its_first_line_names(name: Path) -> None:
    top = shipped_files.shipped_folder()
    assert check_first_line_schema(top / name).parent == (top / "schemas").resolve()


def test_a_new_project_has_every_schema_and_needs_no_network(tmp_path: Path) -> None:
    written = [path for path in starter.write_starter(tmp_path) if path.suffix == ".yml"]
    assert len(written) == len(list(starter.list_files())) - 1 > 20
    for path in written:
        schema = check_first_line_schema(path)
        assert schema.is_relative_to(tmp_path.resolve())
        assert "http" not in {ref[:4] for ref in find_refs(json.loads(schema.read_text()))}


def find_refs(schema: object) -> list[str]:
    """Every `$ref` in a schema."""
    if isinstance(schema, list):
        return [ref for item in schema for ref in find_refs(item)]
    if not isinstance(schema, dict):
        return []
    direct = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return direct + [ref for item in schema.values() for ref in find_refs(item)]


def test_what_commands_write_has_the_line_too(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/groups.yml").unlink()
    for path in starter.write_pair(tmp_path):
        check_first_line_schema(path)
    (tmp_path / "recipes/taken.yml").write_text(
        import_recipe("docker run vllm/vllm-openai:v0.32.0 --model acme/Tiny").text
    )
    assert check_first_line_schema(tmp_path / "recipes/taken.yml").name == "recipe.json"
    Lock().save(tmp_path)
    assert check_first_line_schema(tmp_path / "spark.lock").name == "lock.json"


@pytest.mark.parametrize("kind", ["host", "recipe", "tasks"])
def test_a_wrong_key_does_not_fit(kind: str) -> None:
    schema = json.loads((shipped_files.shipped_folder() / f"schemas/{kind}.json").read_text())
    wrong = [{"name": 7}] if kind == "tasks" else {"adress": "x"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)
