"""tools/stale_quotes.py finds tests and examples that quote a message which src no longer contains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "stale_quotes.py"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_only_quotes_of_a_removed_message_are_listed(tmp_path: Path) -> None:
    for folder in ("src", "tests", "docs"):
        (tmp_path / folder).mkdir()
    message = tmp_path / "src" / "messages.py"
    message.write_text('LOST = "the host has gone away"\nKEPT = f"{1} tokens per second"\n', "utf-8")
    (tmp_path / "README.md").write_text("The host has gone away, in prose the host has gone away.\n", "utf-8")
    (tmp_path / "docs" / "a.md").write_text("# A\n\n```\nFAILED: the host has gone\n```\n", "utf-8")
    test = '"""About the host has gone."""\n\nassert "the host has gone" in "5 tokens per second"\n'
    (tmp_path / "tests" / "test_a.py").write_text(test, "utf-8")
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        assert run(tmp_path, *git, *command).returncode == 0
    assert run(tmp_path, sys.executable, str(TOOL), "HEAD").returncode == 0

    message.write_text('LOST = "the host does not answer"\nKEPT = f"{1} tokens per second"\n', "utf-8")
    listing = run(tmp_path, sys.executable, str(TOOL), "HEAD")
    assert listing.returncode == 1
    assert [line.split(": ")[0] for line in listing.stdout.splitlines()] == ["docs/a.md:4", "tests/test_a.py:3"]
