"""A project with a sandbox, and a fleet that is opened from another folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright import Fleet
from tests.e2e.conftest import SandboxProject, sandbox_project


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SandboxProject]:
    monkeypatch.delenv("SPARKWRIGHT_SANDBOX", raising=False)
    monkeypatch.chdir(tmp_path)
    with sandbox_project() as value:
        (value.root / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
        yield value


@pytest.fixture
def fleet(project: SandboxProject) -> Fleet:
    return Fleet.open(project.root)
