"""Queries to a host with an unusual state folder: an answer or a message, never a traceback."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkwright import host_side
from sparkwright.protocol.events import Event
from tests.runner.test_request import send_request

STATE = ".local/state/sparkwright"


def query_runner(home: Path, verb: str) -> Event:
    (event,), _ = send_request(home, json.dumps({"verb": verb}).encode() + b"\n")
    return event


@pytest.mark.parametrize("verb", ["status", "checks"])
@pytest.mark.parametrize("name", ["health.json", "health.jsonl", "verified.json"])
def test_folder_in_place_of_a_file_counts_as_missing(tmp_path: Path, verb: str, name: str) -> None:
    (tmp_path / STATE / name).mkdir(parents=True)
    assert query_runner(tmp_path, verb)["event"] == verb


def test_status_has_the_hosts_time(tmp_path: Path) -> None:
    began_s = time.time()
    assert began_s <= query_runner(tmp_path, "status")["now_s"] <= time.time()


def test_unanswerable_request_is_refused_with_a_message(tmp_path: Path) -> None:
    (tmp_path / STATE / "lock").mkdir(parents=True)
    answer = query_runner(tmp_path, "status")
    assert (answer["event"], answer["exit"]) == ("recap", 1)
    assert "Is a directory" in answer["msg"]


def test_closed_standard_input_is_reported_without_a_second_error(tmp_path: Path) -> None:
    program = "from sparkwright.runner.main import main; main()"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, program]
    completed = subprocess.run(command, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, check=False)
    assert completed.returncode != 0 and b"UnboundLocalError" not in completed.stderr


def test_preloaded_modules_exist() -> None:
    """boot.py imports modules by name, and a runner with a missing module does not start."""
    tree = ast.parse((Path(host_side.__file__).parent / "runner/boot.py").read_text())
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    modules = {f"sparkwright.modules.{text}" for text in strings if re.fullmatch(r"[a-z_]+\.[a-z_]+", text)}
    runner = {text for text in strings if re.fullmatch(r"sparkwright\.runner\.[a-z_]+", text)}
    assert (len(modules), len(runner)) >= (6, 3)
    assert [name for name in sorted(modules | runner) if importlib.util.find_spec(name) is None] == []
