"""Diagnostics of a failed server, stored on the host for `invoke incident`.

~/.local/state/sparkwright/incidents/ID/    about.json  container.log  inspect.json  meminfo  holders.txt  dmesg.txt
                                            docker-ps.txt  nvidia-smi.txt  plan.json  events.jsonl  memory.txt

Secrets are masked in all files: those of the run, the servers' keys, and everything named or formatted like a secret.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import containers, log_reader
from sparkwright.host.memory import holders, start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import server_keys
from sparkwright.host.state import StateFolder, newest_first, write_atomically
from sparkwright.protocol.event_shapes import INCIDENT_FILES
from sparkwright.trust import secret_patterns
from sparkwright.trust.bounds import parse_bounded_json
from sparkwright.trust.redact import Redactor
from sparkwright.visible import escape_json

FOLDER = "incidents"
MAX_INCIDENTS = 20
LOG_LINES = 5000
DMESG_LINES = 300
#: files in which strings are masked one by one, since they are JSON
_JSON_FILES = ("about.json", "inspect.json", "plan.json", "events.jsonl")


def save(context: Context, name: str, reason: str) -> Path:
    """Save the diagnostics of container `name` and return their folder. Keeps the newest MAX_INCIDENTS.

    If the content of a file is unavailable, the file contains the reason. A write error ends the collection, with a note.
    """
    folder = context.state.folder(FOLDER, context.run_id)
    run_secrets = (secret.reveal() for secret in context.secrets.values())
    redactor = Redactor([*run_secrets, *server_keys.list_keys(context.state)])
    for file_name, read_content in _iter_contents(context, name, reason):
        try:
            text = read_content() if file_name in _JSON_FILES else secret_patterns.mask_text(read_content())
        except Exception as error:  # the engine may be the cause
            error_kind = "" if isinstance(error, SparkwrightError | OSError) else f"{type(error).__name__}: "
            text = f"not available:  {error_kind}{error}\n"
        try:
            write_atomically(folder / file_name, redactor.redact_text(text).encode(errors="backslashreplace"))
        except OSError as error:
            context.note(f"cannot save {file_name} of the incident: {error.strerror}")
            break
    for old_bundle in list_bundles(context.state)[MAX_INCIDENTS:]:
        shutil.rmtree(old_bundle, ignore_errors=True)
    return folder


def list_bundles(state: StateFolder) -> list[Path]:
    """Return the folders of all incidents, newest first."""
    return newest_first(path for path in (state.path / FOLDER).glob("*") if path.is_dir())


def list_server_bundles(state: StateFolder) -> list[Path]:
    """Return the folders of a server's incidents, newest first; of all incidents if the host has one server."""
    return [bundle for bundle in list_bundles(state) if state.server in ("", _container_of(bundle))]


def _container_of(folder: Path) -> str:
    try:
        record = parse_bounded_json((folder / "about.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(record.get("container", "")).removesuffix(containers.INTERIM_SUFFIX) if isinstance(record, dict) else ""


def iter_files(folder: Path, run_folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file of an incident. The events are read from the run, which continued afterwards."""
    for path in sorted(path for path in folder.iterdir() if path.name in INCIDENT_FILES):
        source = run_folder / path.name if path.name == "events.jsonl" else path
        text = (source if source.exists() else path).read_text(errors="replace")
        text = _mask_lines(text) if path.suffix == ".jsonl" else text
        # JSON is escaped here, since the laptop's escapes would make it invalid
        yield path.name, escape_json(text) if path.suffix in (".json", ".jsonl") else text


def _iter_contents(context: Context, name: str, reason: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each file and a function that returns its content, the most important files first."""
    record = {"time": time.time(), "run": context.run_id, "container": name, "why": secret_patterns.mask_text(reason)}
    run_folder = context.state.path / "runs" / context.run_id
    machine = context.machine
    yield "about.json", lambda: json.dumps(record, indent=1) + "\n"
    yield "container.log", lambda: "\n".join(log_reader.read_last_lines(context.docker(), name, LOG_LINES)) + "\n"
    yield "inspect.json", lambda: json.dumps(redact_inspect(containers.inspect(context.docker(), name) or {}), indent=1)
    yield "meminfo", lambda: machine.path("/proc/meminfo").read_text()
    yield "memory.txt", lambda: _format_samples(context)
    yield "holders.txt", lambda: "\n".join(holders.format_table(holders.inspect(context))) + "\n"
    yield "dmesg.txt", lambda: _read_dmesg(context)
    yield "docker-ps.txt", lambda: _format_containers(context)
    yield "nvidia-smi.txt", lambda: machine.run(nvidia_smi.TABLE_COMMAND, timeout_s=10).out
    yield "plan.json", lambda: _mask_lines((run_folder / "plan.json").read_text())
    yield "events.jsonl", lambda: _mask_lines((run_folder / "events.jsonl").read_text())


def _format_samples(context: Context) -> str:
    """Return the memory samples that this run's start guards recorded."""
    paths = sorted((context.state.path / start_guard.FOLDER).glob(f"{context.run_id}-*"))
    if not paths:
        return "not available:  no start of this run was guarded\n"
    return "\n".join(line for path in paths for line in (path.name, *start_guard.format_timeline(path), "")) + "\n"


def _read_dmesg(context: Context) -> str:
    """Return the last lines of the kernel log. Reading it needs root if kernel.dmesg_restrict is set, as on DGX OS."""
    for argv in (
        ["dmesg", "--ctime"],
        ["sudo", "-n", "dmesg", "--ctime"],
        ["journalctl", "-k", "-n", str(DMESG_LINES)],
    ):
        completed = context.machine.run(argv, timeout_s=10)
        if completed.ok and completed.out.strip():
            return "\n".join(completed.out.splitlines()[-DMESG_LINES:]) + "\n"
    return "not available:  only root can read the kernel log (`sudo dmesg`)\n"


def _mask_lines(text: str) -> str:
    """Mask secrets in lines of JSON; an invalid line, such as one truncated by a full disk, is masked as text."""
    return "".join(f"{_mask_line(line)}\n" for line in text.splitlines())


def _mask_line(line: str) -> str:
    try:
        return json.dumps(secret_patterns.mask_texts(parse_bounded_json(line.encode())), ensure_ascii=False)
    except ValueError:
        return secret_patterns.mask_text(line)


def _format_containers(context: Context) -> str:
    rows = context.docker().api.containers(all=True)
    return "".join(f"{row['Names'][0].lstrip('/')}  {row['State']}  {row['Image']}\n" for row in rows)


def redact_inspect(inspected: dict[str, Any]) -> dict[str, Any]:
    """Return a container's inspect data with all values masked that are named or formatted like a secret."""
    masked: dict[str, Any] = secret_patterns.mask_value(inspected)
    return masked
