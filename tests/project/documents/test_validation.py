"""Suggestions for unknown names, and the schemas of YAML files for editors."""

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
from sparkwright.project.shipped_files import SCHEMA_LINE_PREFIX
from tests.project.importing.forms import import_recipe


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [
        ("pair", ["spark1", "sandbox-pair", "sandbox"], "Did you mean `sandbox-pair`?"),
        ("sparc1", ["spark1", "spark2"], "Did you mean `spark1`?"),
        ("qwen", ["qwen3.5-35b-200k", "qwen3.5-35b", "glm"], "Did you mean `qwen3.5-35b`?"),
        ("recpie", ["engine", "image", "model"], "Available: engine, image, model."),
        ("ab", ["big-lab-of-many"], "Available: big-lab-of-many."),
        ("xyz", [], ""),
    ],
)
def test_suggestion_for_an_unknown_name(word: str, known: list[str], answer: str) -> None:
    assert suggest_name(word, known) == answer


SHIPPED = [
    path.relative_to(shipped_files.shipped_folder())
    for folder in ("hosts", "recipes", "playbooks")
    for path in sorted((shipped_files.shipped_folder() / folder).rglob("*.yml"))
]


@functools.cache
def load_validator(schema: str) -> Any:
    """Return the validator of a schema. Checking the schema itself takes half a second."""
    data = json.loads(schema)
    kind = jsonschema.validators.validator_for(data)
    kind.check_schema(data)
    return kind(data)


def check_first_line_schema(path: Path) -> Path:
    """Validate a file against the schema in its first line. Return the schema's path."""
    text = path.read_text()
    first, _, _ = text.partition("\n")
    assert first.startswith(SCHEMA_LINE_PREFIX), path
    schema = (path.parent / first.removeprefix(SCHEMA_LINE_PREFIX)).resolve()
    load_validator(schema.read_text()).validate(yaml.safe_load(text))
    return schema


@pytest.mark.parametrize("name", SHIPPED, ids=str)
def test_shipped_file_matches_the_schema_of_its_first_line(name: Path) -> None:
    top = shipped_files.shipped_folder()
    assert check_first_line_schema(top / name).parent == (top / "schemas").resolve()


def test_files_of_a_new_project_match_local_schemas(tmp_path: Path) -> None:
    written = [path for path in starter.write_starter(tmp_path) if path.suffix == ".yml"]
    assert len(written) == len(list(starter.list_files())) - 1 > 20
    for path in written:
        schema = check_first_line_schema(path)
        assert schema.is_relative_to(tmp_path.resolve())
        assert "http" not in {ref[:4] for ref in find_refs(json.loads(schema.read_text()))}


def find_refs(schema: object) -> list[str]:
    """Return every `$ref` in a schema."""
    if isinstance(schema, list):
        return [ref for item in schema for ref in find_refs(item)]
    if not isinstance(schema, dict):
        return []
    direct = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return direct + [ref for item in schema.values() for ref in find_refs(item)]


def test_files_written_by_commands_match_their_schemas(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/groups.yml").unlink()
    for path in starter.write_pair(tmp_path):
        check_first_line_schema(path)
    imported = import_recipe("docker run vllm/vllm-openai:v0.32.0 --model acme/Tiny")
    (tmp_path / "recipes/imported.yml").write_text(imported.text)
    assert check_first_line_schema(tmp_path / "recipes/imported.yml").name == "recipe.json"
    Lock().save(tmp_path)
    assert check_first_line_schema(tmp_path / "spark.lock").name == "lock.json"


@pytest.mark.parametrize("kind", ["host", "recipe", "tasks"])
def test_schema_rejects_an_unknown_key(kind: str) -> None:
    schema = json.loads((shipped_files.shipped_folder() / f"schemas/{kind}.json").read_text())
    wrong = [{"name": 7}] if kind == "tasks" else {"adress": "x"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)
