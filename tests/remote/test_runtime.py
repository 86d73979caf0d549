"""The shipped runtime: complete by itself, without the laptop's side, and named by its content."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
from pathlib import Path

from sparkwright.modules import registry
from sparkwright.remote import runtime


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


def test_the_same_sources_have_the_same_name_and_the_same_bytes(tmp_path: Path) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    first = runtime.archive(python, platform.machine())
    data = first.read_bytes()
    first.unlink()
    assert runtime.archive(python, platform.machine()).read_bytes() == data
