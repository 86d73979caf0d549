"""The shipped runtime: complete by itself, without the laptop's side, and named by its content."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sparkwright.modules import registry
from sparkwright.remote import bootstrap, runtime


def unpacked(folder: Path) -> Path:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tarfile.open(runtime.archive(python, platform.machine())) as tar:
        tar.extractall(folder, filter="data")
    return folder / "lib"


def test_every_module_imports_with_nothing_but_the_runtime(tmp_path: Path) -> None:
    lib = unpacked(tmp_path)
    heavy = "docker, huggingface_hub, hf_transfer, hf_xet, psutil, tenacity, jinja2, packaging, requests"
    names = ", ".join(f"sparkwright.modules.{name}" for name in registry.NAMES)
    paths = "[p for p in sys.path if 'site-packages' not in p and 'src' not in p]"
    program = f"import sys; sys.path = [{str(lib)!r}] + {paths}; import {heavy}, sparkwright.runner.main, {names}; print('whole')"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert said.stdout == "whole\n", said.stderr


def test_the_laptops_side_stays_on_the_laptop(tmp_path: Path) -> None:
    lib = unpacked(tmp_path)
    there = {path.name for path in lib.iterdir()} | {path.stem for path in (lib / "sparkwright").iterdir()}
    assert there.isdisjoint(
        {"fabric", "invoke", "paramiko", "pydantic", "rich", "cli", "fleet", "sandbox", "remote", "console"}
    )


def test_the_same_sources_have_the_same_name_and_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    first = runtime.archive(python, platform.machine())
    again = tmp_path / "sparkwright/runtime"
    again.mkdir(parents=True)
    (again / "wheels").symlink_to(first.parent / "wheels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    second = runtime.archive(python, platform.machine())
    assert second.parent == again
    assert (second.name, second.read_bytes()) == (first.name, first.read_bytes())


def test_a_runtime_that_somebody_else_brought_meanwhile_stays_and_one_for_another_python_is_replaced(
    tmp_path: Path,
) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    archive = runtime.archive(python, platform.machine()).read_bytes()
    command = bootstrap.unpack("abc", sys.executable)
    there = tmp_path / ".local/share/sparkwright/runtime/abc"

    def ship() -> bytes:
        env = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(["sh", "-c", command], input=archive, env=env, stdout=subprocess.PIPE, check=True).stdout

    assert ship() == b"shipped\n"
    (there / "in-use").touch()
    assert ship() == b"shipped\n"
    assert (there / "in-use").exists(), "a run reads from it"
    assert [path.name for path in there.parent.iterdir()] == ["abc"]
    (there / "tag").write_text("3.9-x86_64\n")
    assert ship() == b"shipped\n"
    assert not (there / "in-use").exists()
    assert (there / "tag").read_text() == f"{python}-{platform.machine()}\n"
