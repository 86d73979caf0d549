"""A mistake on the command line is refused with one sentence and exit code 5, before anything is changed."""

import subprocess
from pathlib import Path

import pytest

from sparkwright.project import starter
from tests import commands


def run_line(folder: Path, line: str, program: str = "sparkwright") -> subprocess.CompletedProcess[str]:
    return commands.run(*line.split(), cwd=folder, program=program)


@pytest.mark.parametrize("program", ["sparkwright", "invoke"])
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("deploi", "unknown command 'deploi'. Did you mean deploy?"),
        ("bench --help", "'bench' is a group of commands. `--list bench` lists them."),
        ("recipe", "'recipe' is a group of commands. `--list recipe` lists them."),
        ("frobnicate --help", "unknown command 'frobnicate'. See --list."),
        ("--help frobnicate", "unknown command 'frobnicate'. See --list."),
        ("--list benhc", "no command group 'benhc'. Did you mean bench?"),
        ("deploy sandbox", "unexpected argument 'sandbox'. Did you mean deploy --host sandbox?"),
        ("lint qwen3.5-35b", "unexpected argument 'qwen3.5-35b'. Did you mean lint --recipe qwen3.5-35b?"),
        (
            "lint recipes/qwen3.5-35b.yml",
            "unexpected argument 'recipes/qwen3.5-35b.yml'. Did you mean lint --recipe qwen3.5-35b?",
        ),
        ("verify hosts/spark1.yml", "unexpected argument 'hosts/spark1.yml'. Did you mean verify --host spark1?"),
        ("schema host recipe", "unexpected argument 'recipe'. See schema --help."),
        ("deploy --json=1 --host x", "--json takes no value, got '1'."),
        ("plan --host sandbox --check=no", "--check takes no value, got 'no'."),
        ("--host sandbox", "unknown option --host. See --help."),
        ("deploy --hst x", "unknown option --hst. Did you mean --host?"),
        ("deploy --hst=x", "unknown option --hst. Did you mean --host?"),
        ("deploy --canary x --host sandbox", "--canary must be a number, got 'x'."),
        ("logs --host sandbox --tail x", "--tail must be a number, got 'x'."),
        ("deploy --host", "--host needs a value."),
        ("deploy --dry --host sandbox", "unknown option --dry. Did you mean --dry-run (the same as --check)?"),
        ("model.inspect", "model.inspect needs SOURCE: model.inspect --help."),
    ],
)
def test_mistake_is_refused_with_a_sentence(folder: Path, program: str, line: str, sentence: str) -> None:
    result = run_line(folder, line, program)
    assert (result.returncode, result.stderr.strip()) == (5, sentence)
    assert not result.stdout and not (folder / ".sandbox").exists()


#: invalid numbers and choices, with the beginning of the message
VALUES = [
    ("logs --host sandbox --tail -5", "--tail must be at least 1, got -5."),
    ("logs --host sandbox --tail 99999999999", "--tail must be a number up to 1,000,000,000, got 99999999999."),
    ("status --host sandbox --watch --every 0", "--every must be at least 0.1, got 0.0."),
    ("status --host sandbox --watch --every nan", "--every must be a number up to 1,000,000,000, got nan."),
    ("status --host sandbox --watch --every inf", "--every must be a number up to 1,000,000,000, got inf."),
    ("status --host sandbox --watch --every x", "--every must be a number, got 'x'."),
    ("health --host sandbox --token-s -1", "--token-s must be at least 0, got -1.0."),
    ("health.check --host sandbox --token-s nan", "--token-s must be a number up to 1,000,000,000, got nan."),
    ("history --host sandbox --last 0", "--last must be at least 1, got 0."),
    ("history --host sandbox --last x", "--last must be a number, got 'x'."),
    ("ollama.unload --host sandbox --timeout-s -1", "--timeout-s must be at least 0.1, got -1.0."),
    ("deploy --host sandbox --canary -1", "--canary must be at least 0, got -1."),
    ("deploy --host sandbox --canary 1.5", "--canary must be a number, got '1.5'."),
    ("restart --host sandbox --serial 0", "--serial: a batch size must be at least 1, got 0."),
    ("deploy --host sandbox --serial -1", "--serial: a batch size must be at least 1, got -1."),
    ("deploy --host sandbox --serial 200%", "--serial: a batch size must be 1% to 100% of the hosts, got 200%."),
    ("deploy --host sandbox --serial 1,0%", "--serial: a batch size must be 1% to 100% of the hosts, got 0%."),
    ("provision --host sandbox --serial x%", "--serial: invalid batch size 'x%'; use"),
    ("provision --host sandbox --serial ,", "--serial: invalid batch size ''; use"),
    (
        "rollback --host sandbox --max-fail-percentage nan",
        "--max-fail-percentage must be between 0 and 100, got 'nan'.",
    ),
    ("report --host sandbox --since x", "--since: invalid duration 'x'."),
    ("health.install --host sandbox --every x", "--every: invalid duration 'x'."),
    ("health.install --host sandbox --every 1s", "--every 1s is too short."),
    ("health.install --host sandbox --heal-every nan", "--heal-every: invalid duration 'nan'."),
    ("health.install --host sandbox --smoke-every x", "--smoke-every: invalid duration 'x'."),
    ("health.install --host sandbox --heal x", "--heal must be one of none, restart, got 'x'."),
    ("health.install --host sandbox --webhook https://hooks.slack.com/x", "the --webhook URL contains a secret"),
    ("health.install --host sandbox --webhook https://u:p@example.com/", "the --webhook URL contains a secret"),
    ("health.install --host sandbox --verify-models 1h", "--verify-models 1h is too short."),
    ("health.install --host sandbox --quiet-hours 02:00-05:00", "--quiet-hours needs --verify-models."),
    ("health.install --host sandbox --verify-models 7d --quiet-hours 2-5", "--quiet-hours '2-5' is not a time span."),
    ("health.install --host sandbox --command 'x", '--command: no closing quotation in "\'x".'),
    ("runtime.fetch --machine x", "--machine must be one of aarch64, x86_64, got 'x'."),
    ("runtime.fetch --python x", "--python must be one of 3.11,"),
    ("lint --engine-version x", "'x' is not a version of vLLM."),
    ("schema x", "unknown kind of file 'x'."),
    ("sandbox.fault x", "the sandbox has no fault named 'x'."),
    ("sandbox.fault --host sandbox x", "the sandbox has no fault named 'x'."),
    ("recipe.import --from-host x", "no container was named: pass --container NAME."),
    ("sandbox.fault --host host x", "the sandbox has no fault named 'x'."),
    ("unlock --host sandbox --stop --kill", "--stop and --kill can't be combined."),
    ("logs --host sandbox --file x", "pass either --host NAME or --file PATH."),
    ("bench.serve --host sandbox --concurrency 0", "--concurrency must be above 0, got 0."),
    (
        "bench.serve --host sandbox --concurrency 1,x",
        "--concurrency must be numbers separated by commas, or a rising range",
    ),
    (
        "bench.serve --host sandbox --concurrency 8..1",
        "--concurrency must be numbers separated by commas, or a rising range",
    ),
    ("bench.serve --host sandbox --rate nan", "--rate must be above 0, got nan."),
    ("bench.serve --host sandbox --rate inf", "--rate must be above 0, got inf."),
    ("bench.serve --host sandbox --requests -1", "--requests must be at least 0, got -1."),
    ("bench.serve --host sandbox --repeat 0", "--repeat must be at least 1, got 0."),
    ("bench.hol --host sandbox --long-tokens -1", "--long-tokens must be at least 0, got -1."),
    ("bench.sweep --host sandbox --max-num-batched-tokens 0", "--max-num-batched-tokens must be above 0, got 0."),
    ("bench.sweep --host sandbox --max-num-batched-tokens x", "--max-num-batched-tokens must be numbers separated by"),
    ("bench.serve", "pass either --host NAME or --url URL."),
    ("bench.serve --url 127.0.0.1:8000", "--url is not a base URL."),
    ("bench.serve --url http://127.0.0.1:8000/v1?key=x", "--url may contain only an address"),
    ("bench.compare nothing else", "no file nothing."),
    ("client --host sandbox --write", "--write: requires --for."),
    ("client --host sandbox --file opencode.json", "--file: requires --for."),
    ("client --host sandbox --for claude-cod", "--for: no client named 'claude-cod'. Did you mean `claude-code`?"),
    ("bench.ab --host sandbox", "nothing to compare: pass -a RECIPE -b RECIPE, or --flag chunked-prefill."),
]


@pytest.mark.parametrize(("line", "sentence"), VALUES, ids=[row[0] for row in VALUES])
def test_invalid_value_is_refused_with_a_sentence(folder: Path, line: str, sentence: str) -> None:
    result = run_line(folder, line)
    assert result.returncode == 5, result.stdout + result.stderr
    assert result.stderr.startswith(sentence)
    assert not result.stdout and not (folder / ".sandbox").exists()


@pytest.mark.parametrize("line", ["play --help", "model.inspect --help", "explain -h", "deploy --help", "restart -h"])
def test_help_option_is_accepted_instead_of_an_argument(folder: Path, line: str) -> None:
    result = run_line(folder, line)
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: sparkwright {line.split()[0]} ")


def test_home_that_is_a_file_is_reported(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    result = commands.run_process(commands.PROGRAM, "hosts", cwd=folder, HOME=str(home))
    assert (result.returncode, result.stderr.strip()) == (1, f"{home}/.invoke.yaml: Not a directory.")


def test_non_ascii_characters_are_escaped_for_an_ascii_terminal(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    recipe = tmp_path / "recipes/qwen3.5-35b.yml"
    recipe.write_text(recipe.read_text().replace("ipc: private", "env: {GREETING: grüß}\n  ipc: private"))
    words = ("render", "--host", "sandbox")
    result = commands.run_process(commands.PROGRAM, *words, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert "gr\\xfc\\xdf" in result.stdout


def test_new_project_ignores_the_sandbox_and_keeps_an_existing_gitignore(folder: Path, tmp_path: Path) -> None:
    assert ".sandbox/" in (folder / ".gitignore").read_text().splitlines()
    assert "spark.lock" not in (folder / ".gitignore").read_text()
    (tmp_path / ".gitignore").write_text("mine\n")
    starter.write_starter(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
