"""The output of `lint` about a project's recipes."""

import re
from pathlib import Path

from sparkwright.project import starter
from tests import commands

RECIPE = "recipes/qwen3.5-35b.yml"


def test_unchanged_recipes_are_summarized_and_an_edited_one_is_reported(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    fresh = commands.run("lint", cwd=tmp_path)
    assert fresh.returncode == 0 and re.match(r"(\d+) recipes: 0 errors, 0 warnings; \1 as shipped", fresh.stdout)
    assert "thinking is on" not in fresh.stdout
    assert "thinking is on" in commands.run("lint", "--verbose", cwd=tmp_path).stdout
    path = tmp_path / RECIPE
    path.write_text(path.read_text().replace("max-num-seqs: 8", "max-num-seqs: 7"))
    edited = commands.run("lint", cwd=tmp_path).stdout
    assert f"{RECIPE}:" in edited and "recipes/gpt-oss-120b.yml" not in edited


def test_example_is_checked_if_a_host_serves_it(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    assert "frozen" not in commands.run("lint", "--verbose", cwd=tmp_path).stdout
    (tmp_path / "hosts/spark1.yml").write_text("address: spark1\nrecipe: examples/qwen3.5-35b-frozen\n")
    example = commands.run("lint", cwd=tmp_path)
    assert "recipes/examples/qwen3.5-35b-frozen.yml" in example.stdout


def test_engine_version_without_a_recipe_applies_to_vllm_only(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    result = commands.run("lint", "--engine-version", "0.32.0", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^qwen3.5-35b: .*, vLLM 0.32.0$", result.stdout, re.M)
    assert re.search(r"^gpt-oss-120b-gguf: .*, engine version unknown", result.stdout, re.M)
    named = commands.run("lint", "--recipe", "gpt-oss-120b-gguf", "--engine-version", "0.32.0", cwd=tmp_path)
    assert named.returncode == 5 and named.stderr.startswith("'0.32.0' is not a version of llama.cpp.")


def test_invalid_hosts_registries_and_playbooks_are_reported_with_their_lines(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    files = {
        "hosts/spark1.yml": "address: spark1\nport: x\n",
        "hosts/spark2.yml": "rec: qwen3.5-35b\n",
        "registries.yml": "lab: {url: nowhere}\n",
        "playbooks/nightly.yml": "- hosts: all\n  tasks:\n    - include: parts/own.yml\n",
        "playbooks/parts/own.yml": "- name: list\n  comand: {argv: [ls]}\n",
        "playbooks/weekly.yml": "- hosts: all\n  tasks:\n    - command: {argv: [ls], folder: /}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = commands.run("lint", cwd=tmp_path)
    places = [line.partition(": ")[0] for line in result.stderr.splitlines()]
    assert result.returncode == 5 and places == [
        "hosts/spark1.yml:2",
        "hosts/spark2.yml:1",
        "registries.yml:1",
        "playbooks/parts/own.yml:2",
        "playbooks/weekly.yml:3",
    ]
    assert "Other files of the project: 5 errors" in result.stdout
    assert commands.run("lint", "--recipe", "qwen3.5-35b", cwd=tmp_path).returncode == 0


def test_an_error_that_concerns_two_host_files_is_reported(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/spark1.yml").write_text("address: spark1\nmodel_from: spark9\n")
    result = commands.run("lint", cwd=tmp_path)
    assert result.returncode == 5 and result.stderr.startswith("hosts/spark1.yml:2: ")


def test_missing_templates_and_files_are_reported_with_their_lines(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    path = tmp_path / RECIPE
    lines = len(path.read_text().splitlines())
    path.write_text(
        path.read_text() + "files:\n  /etc/a.yml: {template: a.yml.j2}\n  /etc/b.jinja: {file: chat/b.jinja}\n"
    )
    (tmp_path / "playbooks").mkdir()
    playbook = "- hosts: all\n  tasks:\n    - template: {src: c.j2, dest: /tmp/c}\n"
    (tmp_path / "playbooks/own.yml").write_text(playbook)
    result = commands.run("lint", cwd=tmp_path)
    assert result.returncode == 5 and [line.rpartition(" no ")[0] for line in result.stderr.splitlines()] == [
        f"{RECIPE}:{lines + 2}: `files./etc/a.yml`:",
        f"{RECIPE}:{lines + 3}: `files./etc/b.jinja`:",
        "playbooks/own.yml:3:",
    ]
    assert "Other files of the project: 3 errors" in result.stdout


def test_expectations_that_cannot_hold_and_a_flag_without_a_value_are_reported(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    path, text = tmp_path / RECIPE, (tmp_path / RECIPE).read_text()
    text = re.sub("tok_per_s: .*", "tok_per_s: 120", text)
    text = re.sub("load: .*", "load: {context: 8k, streams: 9}", text)
    path.write_text(re.sub("enable-prefix-caching: .*", "enable-prefix-caching:", text))
    out = " ".join(commands.run("lint", "--recipe", "qwen3.5-35b", cwd=tmp_path).stdout.split())
    assert "`expect.tok_per_s` is 120, but the memory's bandwidth allows one stream at most 74.8 tok/s" in out
    assert "`expect.load.streams` is 9, but the server runs 8 requests at a time (max-num-seqs)." in out
    assert "enable-prefix-caching has no value: it is not passed to the engine, which uses its default." in out
    for flag, is_reported in (
        ("speculative-config: {method: mtp, num_speculative_tokens: 2}", False),
        ("per-request-spec-decode-metrics: true", True),  # does not turn speculation on
    ):
        path.write_text(text.replace("  max-num-seqs:", f"  {flag}\n  max-num-seqs:"))
        out = commands.run("lint", "--recipe", "qwen3.5-35b", cwd=tmp_path).stdout
        assert ("bandwidth" in out) is is_reported, out
