"""Registries: fetched at a pinned commit by the ways that a user names, read without a work tree, shown before a recipe is taken."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sparkwright.errors import Refused, Unreachable
from sparkwright.project import registries, starter
from sparkwright.remote.git import MAX_PACKS, MIN_LEFTOVER_AGE_S, Repository
from tests import commands, published
from tests.project.importing.forms import EUGR, SPARKRUN_2, VLLM


def git(folder: Path, *words: str) -> str:
    config_options = [
        "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always", "-c",
        "init.defaultBranch=main", "-c", "core.fsync=none",
    ]  # fmt: skip
    return subprocess.run(
        ["git", "-C", folder, *config_options, *words], check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


def commit_files(work: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "--quiet", "-m", "x")
    git(work, "push", "--quiet", "origin", "HEAD:main")
    return git(work, "rev-parse", "HEAD")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    remote, checkout = tmp_path / "theirs.git", tmp_path / "work"
    remote.mkdir()
    checkout.mkdir()
    git(remote, "init", "--quiet", "--bare")
    git(checkout, "init", "--quiet")
    git(checkout, "remote", "add", "origin", str(remote))
    commit_files(
        checkout,
        {
            "recipes/tiny-fp8.yaml": SPARKRUN_2,
            "recipes/4x/twice.yaml": EUGR,
            "recipes/2x/twice.yaml": EUGR,
            "recipes/modded.yaml": SPARKRUN_2 + "mods: [mods/patchy]\n",
            "recipes/notes.txt": "tiny",
            "mods/patchy/run.sh": "touch /tmp/ran\npatch -p1 < x\n",
            "other/hidden.yaml": VLLM,
        },
    )
    return checkout


@pytest.fixture
def project(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    starter.write_starter(folder)
    (folder / "registries.yml").write_text(f"ours: {{url: 'file://{tmp_path}/theirs.git', recipes: recipes}}\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, cwd=project, env=dict(os.environ))


def test_a_search_pins_the_commit_and_only_an_update_moves_it(project: Path, work: Path) -> None:
    first = git(work, "rev-parse", "HEAD")
    result = run(project, "recipe.search", "tiny")
    assert result.returncode == 0, result.stderr
    assert "@ours/tiny-fp8" in result.stdout and "acme/Tiny-30B-FP8" in result.stdout and "hidden" not in result.stdout
    assert yaml.safe_load((project / "registries.lock").read_text())["ours"]["commit"] == first
    second = commit_files(work, {"recipes/newer.yaml": SPARKRUN_2})
    assert "newer" not in run(project, "recipe.search", "tiny").stdout
    moved = run(project, "recipe.search", "tiny", "--update", "--json")
    assert {"@ours/newer"} <= {recipe["name"] for recipe in json.loads(moved.stdout)["recipes"]}
    assert published.check_output("recipe.search", moved.stdout) == []
    assert f"{first[:12]} -> {second[:12]}" in moved.stderr


def test_fetches_are_collected_and_an_older_commit_can_be_fetched_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry followed for months leaves no more than a few packs, and one that is unreachable at that moment loses none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = Repository(f"file://{tmp_path}/theirs.git", "ours")
    git(tmp_path / "theirs.git", "config", "uploadpack.allowAnySHA1InWant", "true")
    first, packs = repository.fetch("main"), []
    for n in range(MAX_PACKS + 2):
        last = commit_files(work, {"recipes/newer.yaml": f"{SPARKRUN_2}# {n}\n"})
        assert repository.fetch("main") == last
        packs.append(len(list(repository.folder.glob("objects/pack/*.pack"))))
    assert max(packs) == MAX_PACKS and packs[-1] < MAX_PACKS
    assert repository.has_commit(last) and not repository.has_commit(first)
    assert repository.fetch(first) == first
    while len(list(repository.folder.glob("objects/pack/*.pack"))) < MAX_PACKS:
        last = commit_files(work, {"recipes/newer.yaml": f"{SPARKRUN_2}# {len(packs)}\n"})
        repository.fetch("main")
        packs.append(0)
    (tmp_path / "theirs.git").rename(tmp_path / "away.git")
    with pytest.raises(Unreachable):
        repository.fetch("main")
    assert repository.has_commit(last) and list(repository.folder.parent.iterdir()) == [repository.folder]


def test_a_fetch_removes_what_killed_ones_left_and_nothing_else(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old repository beside, half a pack, and locks of git, with which every later fetch would fail."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = Repository(f"file://{tmp_path}/theirs.git", "ours")
    repository.fetch("main")
    place, own = repository.folder.parent, repository.folder
    left = [place / f"{'a' * 20}.git.x1_y2z3q/old", own / "objects/pack/tmp_pack_x"]
    left += [own / "shallow.lock", own / "refs/sparkwright/fetched.lock"]
    precious = tmp_path / "precious"
    kept = [place / f"{'b' * 20}.git", place / "notes", precious, place / f"{'c' * 20}.git.aaaaaaaa"]
    for path in (left[0], *kept):
        path.mkdir(parents=True)
        (path / "file").write_text("mine")
    for path in left[1:]:
        path.write_text("half")
    link = place / f"{'d' * 20}.git.aaaaaaaa"
    link.symlink_to(precious)
    an_hour_ago_s = time.time() - 2 * MIN_LEFTOVER_AGE_S
    for path in (left[0].parent, *left, *kept[:3]):
        os.utime(path, (an_hour_ago_s, an_hour_ago_s))
    os.utime(link, (an_hour_ago_s, an_hour_ago_s), follow_symlinks=False)
    last = commit_files(work, {"recipes/newer.yaml": SPARKRUN_2})
    assert repository.fetch("main") == last
    assert not any(path.exists() for path in (left[0].parent, *left))
    assert all((path / "file").read_text() == "mine" for path in kept) and link.is_symlink()


def test_a_recipe_is_shown_before_it_is_taken(project: Path) -> None:
    refused = run(project, "recipe.import", "@ours/tiny-fp8")
    assert refused.returncode == 5 and "vllm serve {model}" in refused.stderr and "pass --yes" in refused.stderr
    assert not (project / "recipes/tiny-fp8.yml").exists()
    result = run(project, "recipe.import", "@ours/tiny-fp8", "--yes")
    assert result.returncode == 0, result.stderr
    text = (project / "recipes/tiny-fp8.yml").read_text()
    assert "theirs.git at" in text.splitlines()[1] and "recipes/tiny-fp8.yaml" in text.splitlines()[1]


def test_mods_beside_it_are_told_and_names_that_mean_several_refused(project: Path) -> None:
    refused = run(project, "recipe.import", "@ours/modded", "--yes")
    assert refused.returncode == 5 and "mods/patchy (patches files of the image)" in refused.stderr
    assert "@ours/modded" in refused.stderr and "/tmp/sparkwright" not in refused.stderr
    twice = run(project, "recipe.import", "@ours/twice", "--yes")
    assert twice.returncode == 5 and "matches 2 recipes" in twice.stderr
    assert "vllm-node" in run(project, "recipe.import", "@ours/4x/twice", "--yes").stderr
    assert "no recipe 'tinyfp8'" in run(project, "recipe.import", "@ours/tinyfp8", "--yes").stderr
    assert run(project, "recipe.import", "@theirs/tiny", "--yes").returncode == 5


def test_a_hostile_repository_runs_nothing_and_leads_nowhere(project: Path, work: Path, tmp_path: Path) -> None:
    hook = tmp_path / "theirs.git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (work / "recipes/link.yaml").symlink_to("/etc/passwd")
    (work / "recipes/large.yaml").write_text("a: " + "x" * (2 * 2**20))
    commit_files(
        work,
        {
            ".gitattributes": "* filter=evil\n",
            ".gitmodules": '[submodule "x"]\npath = x\nurl = ext::sh -c touch% ran\n',
        },
    )
    result = run(project, "recipe.search", "a")
    assert result.returncode == 0 and "link" not in result.stdout and "large" not in result.stdout
    assert not (tmp_path / "ran").exists()


def push_tree(work: Path, listing: str) -> None:
    """Push a commit with a tree that no work tree could hold. listed: as `git mktree` reads it."""
    tree = subprocess.run(["git", "-C", work, "mktree"], input=listing, check=True, capture_output=True, text=True)
    commit_id = git(work, "commit-tree", tree.stdout.strip(), "-m", "x")
    git(work, "push", "--quiet", "--force", "origin", f"{commit_id}:refs/heads/main")


def write_blob(work: Path, content: bytes) -> str:
    path = work / ".git/content"
    path.write_bytes(content)
    return git(work, "hash-object", "-w", str(path))


def one_file_under_many_names(work: Path) -> None:
    """Some 100 kB that are 3 GB of recipes."""
    content = write_blob(work, b"a" * 1_000_000)
    rows = "".join(f"100644 blob {content}\tr{number:04}.yaml\n" for number in range(3000))
    tree = subprocess.run(["git", "-C", work, "mktree"], input=rows, check=True, capture_output=True, text=True)
    push_tree(work, f"040000 tree {tree.stdout.strip()}\trecipes\n")


def folders_within_folders(work: Path) -> None:
    """Some 100 kB that are a hundred million recipes."""
    row = f"100644 blob {write_blob(work, b'model: a/b')}\ta.yaml\n"
    for _ in range(8):
        tree = subprocess.run(["git", "-C", work, "mktree"], input=row, check=True, capture_output=True, text=True)
        row = "".join(f"040000 tree {tree.stdout.strip()}\td{number}\n" for number in range(10))
    tree = subprocess.run(["git", "-C", work, "mktree"], input=row, check=True, capture_output=True, text=True)
    push_tree(work, f"040000 tree {tree.stdout.strip()}\trecipes\n")


def run_measured(project: Path, *words: str) -> tuple[int, str, int]:
    """(exit code, standard error, KiB of the largest process) of a command."""
    program = (
        "import resource, subprocess, sys; done = subprocess.run([sys.executable, '-c', 'import sys; from sparkwright.cli import main; sys.exit(main())', *sys.argv[1:]], stdout=2);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    words = (sys.executable, "-c", program, *words)
    result = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    return result.returncode, result.stderr, int(result.stdout)


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (one_file_under_many_names, "recipes exceed the limit of 32 MiB"),
        (folders_within_folders, "more files than a registry needs"),
    ],
)
def test_a_small_repository_that_unpacks_to_gigabytes_is_refused(
    project: Path, work: Path, bomb: Callable[[Path], None], why: str
) -> None:
    bomb(work)
    code, result, most_kib = run_measured(project, "recipe.search", "a")
    assert code == 5 and why in result and "registry ours" in result, result
    assert most_kib < 256 * 1024, f"{most_kib // 1024} MiB"


def test_a_registry_that_is_refused_does_not_hide_the_others(project: Path, work: Path, tmp_path: Path) -> None:
    (project / "registries.yml").write_text(
        f"gone: {{url: 'file://{tmp_path}/nowhere.git'}}\nours: {{url: 'file://{tmp_path}/theirs.git', recipes: recipes}}\n"
    )
    result = run(project, "recipe.search", "tiny")
    assert result.returncode == 3 and "@ours/tiny-fp8" in result.stdout and "registry gone" in result.stderr


def test_a_path_that_no_folder_takes_breaks_no_import(project: Path, work: Path) -> None:
    script, recipe = write_blob(work, b"patch x\n"), write_blob(work, SPARKRUN_2.encode())
    paths = (
        f"mods/{'m' * 300}/run.sh",
        "mods/" + "d/" * 1500 + "run.sh",  # deeper than Python recurses
        "mods/" + f"{'d' * 250}/" * 25 + "run.sh",  # longer than PATH_MAX
        "recipes/tiny-fp8.yaml/run.sh",
    )
    for path in paths:
        git(work, "update-index", "--add", "--replace", "--cacheinfo", f"100644,{script},{path}")
    for path in (f"recipes/{'r' * 300}.yaml", "recipes/tiny.yaml"):
        git(work, "update-index", "--add", "--cacheinfo", f"100644,{recipe},{path}")
    push_tree(work, git(work, "ls-tree", git(work, "write-tree")) + "\n")
    assert run(project, "recipe.search", "a").returncode == 0
    result = run(project, "recipe.import", "@ours/tiny", "--yes")
    assert result.returncode == 0, result.stderr
    long = run(project, "recipe.import", f"@ours/{'r' * 300}", "--yes", "--name", "long")
    assert long.returncode == 0, long.stderr


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id",
        "http://example.org/x",
        "--upload-pack=id",
        "https://user:secret@example.org/x",
        "git@example.org:x",
        "/srv/x",
        "https://-x/y z",
    ],
)
def test_other_ways_to_a_repository_are_refused(project: Path, url: str) -> None:
    (project / "registries.yml").write_text(f"ours: {{url: '{url}'}}\n")
    with pytest.raises(Refused, match="registries.yml:1"):
        registries.load(project)


def test_git_itself_is_kept_to_those_ways_and_says_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(Unreachable, match="transport 'ext' not allowed"):
        Repository("ext::sh -c id", "evil").fetch("HEAD")
    with pytest.raises(Unreachable, match="registry gone: git failed"):
        Repository(f"file://{tmp_path}/nowhere.git", "gone").fetch("HEAD")


@pytest.mark.parametrize(
    "text",
    [
        "[]\n",
        "ours: {}\n",
        "ours: {url: 'https://a.b/c', recipes: ../x}\n",
        "a/b: {url: 'https://a.b/c'}\n",
        "ours: 7\n",
    ],
)
def test_a_mistake_in_the_file_gets_its_line(project: Path, text: str) -> None:
    (project / "registries.yml").write_text(text)
    result = run(project, "recipe.search", "x")
    assert result.returncode == 5 and "registries.yml" in result.stderr and "Traceback" not in result.stderr
