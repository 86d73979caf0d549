"""Completion in real shells: commands, options, and the names of the project's hosts, recipes and playbooks."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.on_a_terminal import open_screen

SHELLS = ("bash", "zsh", "fish")

#: text before the cursor, some expected completions, and some that must not be offered
TYPED = [
    ("dep", {"deploy"}, {"doctor"}),
    ("bench.s", {"bench.smoke", "bench.serve", "bench.sweep"}, {"bench.ab"}),
    ("heal", {"health", "health.install"}, {"health.check"}),
    ("deploy --ch", {"--check"}, {"--canary"}),
    ("deploy --no-", {"--no-rollback"}, {"--rollback"}),
    ("deploy --host sp", {"spark1"}, {"sandbox", "spark.lock"}),
    ("deploy -H sa", {"sandbox"}, {"spark1"}),
    ("deploy --host ", {"spark1", "sandbox", "lab", "all"}, {"groups"}),
    ("deploy --host spark1,sa", {"spark1,sandbox"}, {"spark1,spark1"}),
    ("status --watch --host la", {"lab"}, {"all"}),
    ("models.copy --from spark1 --to la", {"lab"}, set()),
    ("render --recipe glm", {"glm-4.7-flash"}, {"gpt-oss-120b"}),
    ("bench.ab -a llama", {"llama-3.1-8b"}, set()),
    ("render --recipe examples/", {"examples/qwen3.5-35b-frozen"}, {"qwen3.5-35b"}),
    ("play rest", {"restart"}, {"rollback"}),
    ("play --host spark1 rest", {"restart"}, {"--recipe"}),
    ("bench.compare first.json notes", {"notes.html"}, set()),
    ("explain unch", {"unchunked-budget"}, set()),
    ("docs.module container", {"container"}, set()),
    ("sandbox.fault oo", {"oom"}, set()),
    ("health.install --heal re", {"restart"}, {"recipes"}),
    ("completion z", {"zsh"}, set()),
    ("report --to notes", {"notes.html"}, {"spark1"}),
]


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """Add the scripts to the project, and files whose names are not valid for hosts, recipes or playbooks."""
    for name in ("hosts/$(touch oops).yml", "hosts/a b.yml", "hosts/\x1b[31m.yml", "notes.html"):
        (folder / name).write_text("")
    (folder / "deeper").mkdir()
    for shell in SHELLS:
        script = commands.run_process(commands.PROGRAM, "completion", shell, cwd=folder).stdout
        (folder / f"completion.{shell}").write_text(script)
    return folder


COMPLETION_SCRIPTS = {
    "bash": """
        shopt -s failglob
        source "$1/completion.bash"
        read -ra COMP_WORDS <<<"sparkwright $2"; [[ $2 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _sparkwright
        printf '%s\\n' "${COMPREPLY[@]}"
        [[ ${#COMPREPLY[@]} -gt 0 ]] || compgen -f -- "${COMP_WORDS[COMP_CWORD]}"  # what `-o default` does
        """,
    # zsh's completion system needs a terminal; these functions replace it
    "zsh": """
        compdef() { :; }
        functions[compdef]=$functions[compdef]
        compset() { :; }
        compadd() { shift; for word; do [[ $word == $current* ]] && print -r -- $word; done; return 0; }
        _files() { print -rl -- $words[CURRENT]*(N); }
        source "$1/completion.zsh"
        words=(sparkwright ${(s: :)2}); [[ $2 == *' ' ]] && words+=('')
        CURRENT=$#words
        _sparkwright
        """,
    "fish": 'source "$argv[1]/completion.fish"; complete -C "sparkwright $argv[2]"',
}


SHELL_COMMANDS = {
    "bash": ("bash", "-c", COMPLETION_SCRIPTS["bash"], "bash"),
    "zsh": ("zsh", "-fc", COMPLETION_SCRIPTS["zsh"], "zsh"),
    "fish": ("fish", "--no-config", "-c", COMPLETION_SCRIPTS["fish"]),
}


def list_completions(shell: str, folder: Path, typed: str, *, cwd: str = ".") -> set[str]:
    """Return the completions of a shell for the text after `sparkwright `, without descriptions."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    env = {"HOME": str(folder), "PATH": f"{commands.PROGRAM.parent}:{os.environ['PATH']}"}
    result = commands.run_process(*SHELL_COMMANDS[shell], str(folder), typed, cwd=folder / cwd, **env)
    assert not result.stderr, result.stderr
    return {line.partition("\t")[0] for line in result.stdout.splitlines() if line}


@pytest.mark.parametrize(("typed", "expected", "excluded"), TYPED, ids=[row[0] for row in TYPED])
@pytest.mark.parametrize("shell", SHELLS)
def test_completions(shell: str, folder: Path, typed: str, expected: set[str], excluded: set[str]) -> None:
    completions = list_completions(shell, folder, typed)
    assert expected <= completions and not excluded & completions, completions


@pytest.mark.parametrize("shell", SHELLS)
def test_invalid_file_name_is_neither_run_nor_offered(shell: str, folder: Path) -> None:
    completions = list_completions(shell, folder, "deploy --host ")
    assert completions == {"spark1", "sandbox", "lab", "all"}
    assert not (folder / "oops").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_names_come_from_the_project_of_the_current_folder(shell: str, folder: Path, tmp_path: Path) -> None:
    assert "spark1" in list_completions(shell, folder, "deploy --host sp", cwd="deeper")
    assert list_completions(shell, folder, "deploy --host ", cwd=str(tmp_path)) == {"all"}


@pytest.mark.parametrize("shell", SHELLS)
def test_no_error_is_printed_for_a_project_without_readable_files(shell: str, folder: Path, tmp_path: Path) -> None:
    for name in ("hosts", "recipes"):
        (tmp_path / name).mkdir()
    groups = tmp_path / "hosts/groups.yml"
    groups.write_text("lab: {}\n")
    groups.chmod(0)  # root can read it nevertheless
    assert list_completions(shell, folder, "deploy --host ", cwd=str(tmp_path)) <= {"all", "lab"}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_of_a_value_after_an_equals_sign(shell: str, folder: Path) -> None:
    typed = "deploy --host = sp" if shell == "bash" else "deploy --host=sp"  # bash gives three words
    assert {item.rpartition("=")[2] for item in list_completions(shell, folder, typed)} == {"spark1"}


def test_tab_in_bash_on_a_terminal(folder: Path) -> None:
    bash = "import os; os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"
    with open_screen(cwd=folder, env={"TERM": "dumb", "PS1": "$ "}, program=bash) as screen:
        screen.type("source completion.bash; echo rea''dy\n")
        screen.wait_for("ready\n")
        screen.type("sparkwright depl\t--ho\tspar\t")
        screen.wait_for("sparkwright deploy --host spark1 ")


def test_zsh_loads_the_script_from_its_startup_file(folder: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    line = 'eval "$(cat completion.zsh)" && print $_comps[sparkwright]'
    result = commands.run_process("zsh", "-fc", line, cwd=folder, HOME=str(folder))
    assert (result.stdout, result.stderr) == ("_sparkwright\n", "")


def test_unknown_shell_is_refused(tmp_path: Path) -> None:
    result = commands.run("completion", "tcsh", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (5, "")
    assert result.stderr == "no completion for 'tcsh'. Shells: bash, zsh, fish.\n"


PROGRAM = """
import sys
sys.argv = ["sparkwright", "completion", "bash"]
from sparkwright.cli import namespace
from sparkwright.cli.project import completion_commands
from sparkwright.app import completion
assert "_sparkwright" in completion.render_script("bash", completion_commands(namespace))
print(sorted({"pydantic", "fabric", "rich"} & set(sys.modules)))
"""


def test_script_is_printed_without_heavy_imports(tmp_path: Path) -> None:
    """It is called in ~/.bashrc, so each new terminal waits for it."""
    result = commands.run_process(sys.executable, "-c", PROGRAM, cwd=tmp_path)
    assert result.stdout == "[]\n", result.stderr
