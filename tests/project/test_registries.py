"""Registries of recipes: fetched at a pinned commit, read without a work tree, and shown before an import."""

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

GIT_OPTIONS = (
    "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main",
    "-c", "core.fsync=none",
)  # fmt: skip


def git(folder: Path, *words: str, stdin: str | None = None) -> str:
    command = ["git", "-C", str(folder), *GIT_OPTIONS, *words]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, input=stdin)
    return result.stdout.strip()


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
    files = {
        "recipes/tiny-fp8.yaml": SPARKRUN_2,
        "recipes/4x/twice.yaml": EUGR,
        "recipes/2x/twice.yaml": EUGR,
        "recipes/modded.yaml": SPARKRUN_2 + "mods: [mods/patchy]\n",
        "recipes/notes.txt": "tiny",
        "mods/patchy/run.sh": "patch -p1 < x\n",
        "other/hidden.yaml": VLLM,
    }
    commit_files(checkout, files)
    return checkout


@pytest.fixture
def repository(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Repository(f"file://{tmp_path}/theirs.git", "ours")


@pytest.fixture
def project(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    starter.write_starter(folder)
    (folder / "registries.yml").write_text(f"ours: {{url: 'file://{tmp_path}/theirs.git', recipes: recipes}}\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, cwd=project)


def test_search_pins_the_commit_until_an_update(project: Path, work: Path) -> None:
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


def count_packs(repository: Repository) -> int:
    return len(list(repository.folder.glob("objects/pack/*.pack")))


def test_packs_of_old_fetches_are_removed(repository: Repository, work: Path, tmp_path: Path) -> None:
    """An older commit can be fetched again, and an unreachable registry loses no pack."""
    git(tmp_path / "theirs.git", "config", "uploadpack.allowAnySHA1InWant", "true")
    first, packs = repository.fetch("main"), []
    for n in range(MAX_PACKS + 2):
        last = commit_files(work, {"recipes/newer.yaml": f"{SPARKRUN_2}# {n}\n"})
        assert repository.fetch("main") == last
        packs.append(count_packs(repository))
    assert max(packs) == MAX_PACKS and packs[-1] < MAX_PACKS
    assert repository.has_commit(last) and not repository.has_commit(first)
    assert repository.fetch(first) == first
    while count_packs(repository) < MAX_PACKS:
        n += 1
        last = commit_files(work, {"recipes/newer.yaml": f"{SPARKRUN_2}# {n}\n"})
        repository.fetch("main")
    (tmp_path / "theirs.git").rename(tmp_path / "away.git")
    with pytest.raises(Unreachable):
        repository.fetch("main")
    assert repository.has_commit(last) and list(repository.folder.parent.iterdir()) == [repository.folder]


def test_fetch_removes_only_the_leftovers_of_killed_fetches(repository: Repository, work: Path, tmp_path: Path) -> None:
    """An old repository, half a pack, and locks of git, which would make every later fetch fail."""
    repository.fetch("main")
    cache, folder = repository.folder.parent, repository.folder
    old_repository = cache / f"{'a' * 20}.git.x1_y2z3q"
    leftovers = [folder / name for name in ("objects/pack/tmp_pack_x", "shallow.lock", "refs/sparkwright/fetched.lock")]
    outside = tmp_path / "outside"
    kept = [cache / f"{'b' * 20}.git", cache / "notes", outside, cache / f"{'c' * 20}.git.aaaaaaaa"]
    for path in (old_repository / "old", *kept):
        path.mkdir(parents=True)
        (path / "file").write_text("mine")
    for path in leftovers:
        path.write_text("half")
    link = cache / f"{'d' * 20}.git.aaaaaaaa"
    link.symlink_to(outside)
    an_hour_ago_s = time.time() - 2 * MIN_LEFTOVER_AGE_S
    for path in (old_repository, *leftovers, *kept[:3]):  # the last one is too new to be a leftover
        os.utime(path, (an_hour_ago_s, an_hour_ago_s))
    os.utime(link, (an_hour_ago_s, an_hour_ago_s), follow_symlinks=False)
    last = commit_files(work, {"recipes/newer.yaml": SPARKRUN_2})
    assert repository.fetch("main") == last
    assert not any(path.exists() for path in (old_repository, *leftovers))
    assert all((path / "file").read_text() == "mine" for path in kept) and link.is_symlink()


def test_import_shows_the_recipe_first(project: Path) -> None:
    refused = run(project, "recipe.import", "@ours/tiny-fp8")
    assert refused.returncode == 5 and "vllm serve {model}" in refused.stderr and "pass --yes" in refused.stderr
    assert not (project / "recipes/tiny-fp8.yml").exists()
    result = run(project, "recipe.import", "@ours/tiny-fp8", "--yes")
    assert result.returncode == 0, result.stderr
    text = (project / "recipes/tiny-fp8.yml").read_text()
    assert "theirs.git at" in text.splitlines()[1] and "recipes/tiny-fp8.yaml" in text.splitlines()[1]


def test_mods_and_ambiguous_names_are_refused(project: Path) -> None:
    refused = run(project, "recipe.import", "@ours/modded", "--yes")
    assert refused.returncode == 5 and "mods/patchy (patches files of the image)" in refused.stderr
    assert "@ours/modded" in refused.stderr and "/tmp/sparkwright" not in refused.stderr
    twice = run(project, "recipe.import", "@ours/twice", "--yes")
    assert twice.returncode == 5 and "matches 2 recipes" in twice.stderr
    assert "vllm-node" in run(project, "recipe.import", "@ours/4x/twice", "--yes").stderr
    assert "no recipe 'tinyfp8'" in run(project, "recipe.import", "@ours/tinyfp8", "--yes").stderr
    assert run(project, "recipe.import", "@theirs/tiny", "--yes").returncode == 5


def test_hostile_repository_runs_nothing(project: Path, work: Path, tmp_path: Path) -> None:
    hook = tmp_path / "theirs.git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (work / "recipes/link.yaml").symlink_to("/etc/passwd")
    (work / "recipes/large.yaml").write_text("a: " + "x" * (2 * 2**20))
    submodule = '[submodule "x"]\npath = x\nurl = ext::sh -c touch% ran\n'
    commit_files(work, {".gitattributes": "* filter=evil\n", ".gitmodules": submodule})
    result = run(project, "recipe.search", "a")
    assert result.returncode == 0 and "link" not in result.stdout and "large" not in result.stdout
    assert not (tmp_path / "ran").exists()


def push_tree(work: Path, listing: str) -> None:
    """Push a commit with a tree that no work tree could hold. listing: as `git mktree` reads it."""
    commit_id = git(work, "commit-tree", git(work, "mktree", stdin=listing), "-m", "x")
    git(work, "push", "--quiet", "--force", "origin", f"{commit_id}:refs/heads/main")


def write_blob(work: Path, content: bytes) -> str:
    path = work / ".git/content"
    path.write_bytes(content)
    return git(work, "hash-object", "-w", str(path))


def push_one_file_under_many_names(work: Path) -> None:
    """Push some 100 kB that unpack to 3 GB of recipes."""
    content = write_blob(work, b"a" * 1_000_000)
    rows = "".join(f"100644 blob {content}\tr{number:04}.yaml\n" for number in range(3000))
    push_tree(work, f"040000 tree {git(work, 'mktree', stdin=rows)}\trecipes\n")


def push_nested_folders(work: Path) -> None:
    """Push some 100 kB that unpack to a hundred million recipes."""
    rows = f"100644 blob {write_blob(work, b'model: a/b')}\ta.yaml\n"
    for _ in range(8):
        tree = git(work, "mktree", stdin=rows)
        rows = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
    push_tree(work, f"040000 tree {git(work, 'mktree', stdin=rows)}\trecipes\n")


def run_measured(project: Path, *words: str) -> tuple[int, str, int]:
    """Run a command: return its exit code, its standard error, and the KiB of the largest process."""
    main = "import sys; from sparkwright.cli import main; sys.exit(main())"
    program = (
        f"import resource, subprocess, sys; done = subprocess.run([sys.executable, '-c', '{main}', *sys.argv[1:]], stdout=2); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    command = [sys.executable, "-c", program, *words]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    return result.returncode, result.stderr, int(result.stdout)


@pytest.mark.parametrize(
    ("push_bomb", "message"),
    [
        (push_one_file_under_many_names, "recipes exceed the limit of 32 MiB"),
        (push_nested_folders, "more files than a registry needs"),
    ],
)
def test_small_repository_that_unpacks_to_gigabytes_is_refused(
    project: Path, work: Path, push_bomb: Callable[[Path], None], message: str
) -> None:
    push_bomb(work)
    code, stderr, peak_kib = run_measured(project, "recipe.search", "a")
    assert code == 5 and message in stderr and "registry ours" in stderr, stderr
    assert peak_kib < 256 * 1024, f"{peak_kib // 1024} MiB"


def test_unreachable_registry_does_not_hide_the_others(project: Path, tmp_path: Path) -> None:
    path = project / "registries.yml"
    path.write_text(f"gone: {{url: 'file://{tmp_path}/nowhere.git'}}\n{path.read_text()}")
    result = run(project, "recipe.search", "tiny")
    assert result.returncode == 3 and "@ours/tiny-fp8" in result.stdout and "registry gone" in result.stderr


def test_impossible_paths_do_not_prevent_an_import(project: Path, work: Path) -> None:
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
        "ext::sh -c id", "http://example.org/x", "--upload-pack=id", "https://user:secret@example.org/x", "git@example.org:x",
        "/srv/x", "https://-x/y z",
    ],
)  # fmt: skip
def test_unsupported_url_is_refused(tmp_path: Path, url: str) -> None:
    (tmp_path / "registries.yml").write_text(f"ours: {{url: '{url}'}}\n")
    with pytest.raises(Refused, match="registries.yml:1"):
        registries.load(tmp_path)


def test_git_refuses_other_transports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(Unreachable, match="transport 'ext' not allowed"):
        Repository("ext::sh -c id", "evil").fetch("HEAD")
    with pytest.raises(Unreachable, match="registry gone: git failed"):
        Repository(f"file://{tmp_path}/nowhere.git", "gone").fetch("HEAD")


@pytest.mark.parametrize(
    "text",
    ["[]", "ours: {}", "ours: {url: 'https://a.b/c', recipes: ../x}", "a/b: {url: 'https://a.b/c'}", "ours: 7"],
)
def test_mistake_in_the_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "registries.yml").write_text(f"{text}\n")
    with pytest.raises(Refused, match="registries.yml"):
        registries.load(tmp_path)
