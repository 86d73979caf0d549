"""The host settings that `provision` can change, as data: the file of each setting, and the commands that apply and undo it.

Sources: nvidia-smi -lgc against heat (MiaAI-Lab DSpark-2x issue 146); earlyoom(1); Ollama's envconfig (docs/doctor.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLOCK, SWAPPINESS, EARLYOOM, OLLAMA = "clock cap", "swappiness", "earlyoom", "Ollama's limits"
CLOCK_UNIT = "sparkwright-clock-cap.service"
#: path of each setting's file
SETTING_PATHS: Mapping[str, str] = {
    CLOCK: f"/etc/systemd/system/{CLOCK_UNIT}",
    SWAPPINESS: "/etc/sysctl.d/60-sparkwright.conf",
    EARLYOOM: "/etc/default/earlyoom",
    OLLAMA: "/etc/systemd/system/ollama.service.d/60-sparkwright.conf",
}
#: path of the kernel's file with the current value, for the settings that have one
LIVE_PATHS: Mapping[str, str] = {SWAPPINESS: "/proc/sys/vm/swappiness"}

Commands = tuple[tuple[str, ...], ...]
RELOAD_COMMAND = ("systemctl", "daemon-reload")
#: try-restart does not start a stopped service
OLLAMA_RESTART_COMMANDS: Commands = (RELOAD_COMMAND, ("systemctl", "try-restart", "ollama.service"))
EARLYOOM_RESTART_COMMANDS: Commands = (("systemctl", "try-restart", "earlyoom.service"),)
#: commands to run before a setting's file is removed or restored
COMMANDS_BEFORE_UNDO: Mapping[str, Commands] = {CLOCK: (("systemctl", "disable", "--now", CLOCK_UNIT),)}

#: below this, a capped GPU cannot be distinguished from one that is stuck in a low-power state (measure/background.py)
MIN_CLOCK_MHZ = 1600
CLOCK_MHZ_RANGE, SWAPPINESS_RANGE, EARLYOOM_PERCENT_RANGE = (MIN_CLOCK_MHZ, 4000), (0, 200), (1, 50)
#: matches the clock cap in the unit's text
CLOCK_CAP_PATTERN = r"-lgc 0,(\d{1,6})\b"
#: environment variable and valid values, by key of `ollama_limits`
OLLAMA_KEYS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "max_loaded_models": ("OLLAMA_MAX_LOADED_MODELS", re.compile(r"[1-9]\d{0,2}")),
    "num_parallel": ("OLLAMA_NUM_PARALLEL", re.compile(r"[1-9]\d{0,2}")),
    "context_length": ("OLLAMA_CONTEXT_LENGTH", re.compile(r"[1-9]\d{2,6}")),
    "keep_alive": ("OLLAMA_KEEP_ALIVE", re.compile(r"-?\d{1,6}(ms|s|m|h)?")),
}
CLOCK_UNIT_TEXT = """\
# Written by sparkwright; `sparkwright provision --undo` removes it.
[Unit]
Description=Highest SM clock of the GPU, against heat
After=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-smi -lgc 0,{0}
ExecStop=/usr/bin/nvidia-smi -rgc

[Install]
WantedBy=multi-user.target
"""
EARLYOOM_ARGS_PATTERN = re.compile(r"^EARLYOOM_ARGS=.*$", re.MULTILINE)


@dataclass(frozen=True)
class Setting:
    """A setting of a host: its file's content and the commands that apply it."""

    name: str
    #: the requested value, for the diff
    value_text: str
    #: returns the file's new content, given the current content
    build_content: Callable[[str], str]
    #: returns the value in a file's content, for the diff; None if the file does not set it
    read_value: Callable[[str], str | None]
    apply_commands: Commands
    #: the fix if the file is missing; empty if sparkwright may create it
    missing_file_fix: str = ""
    #: values by the name of the variable, which a file with a later name would override
    variables: Mapping[str, str] = field(default_factory=dict)

    def find_assignments(self, text: str) -> dict[str, tuple[int, str, str]]:
        """Return the last line of another file that sets each variable: its number, its text and the value."""
        assignments = {}
        for number, line in enumerate(text.splitlines(), start=1):
            for name in self.variables:
                if match := re.search(rf"^[^#;]*(?<![\w.]){re.escape(name)}\s*=\s*([^\s\"']*)", line):
                    assignments[name] = number, line.strip(), match[1]
        return assignments


def build_settings(
    clock_mhz: int | None, swappiness: int | None, earlyoom_percent: int | None, ollama: Mapping[str, Any]
) -> list[Setting]:
    """Return the settings whose value is neither None nor empty. Raises ValueError with a message for an invalid value."""
    settings = []
    if clock_mhz is not None:
        settings.append(_clock_setting(_check_number("clock_cap_mhz", clock_mhz, CLOCK_MHZ_RANGE)))
    if swappiness is not None:
        settings.append(_swappiness_setting(_check_number("swappiness", swappiness, SWAPPINESS_RANGE)))
    if earlyoom_percent is not None:
        settings.append(_earlyoom_setting(_check_number("earlyoom_percent", earlyoom_percent, EARLYOOM_PERCENT_RANGE)))
    if ollama:
        settings.append(_ollama_setting(ollama))
    return settings


def undo_commands(name: str, live_value: str) -> Commands:
    """Return the commands that apply a restored file or, for swappiness, the kernel's former value (see LIVE_PATHS)."""
    if name == SWAPPINESS:
        return (("sysctl", "-w", f"vm.swappiness={live_value}"),) if live_value.isdigit() else ()
    return {CLOCK: (RELOAD_COMMAND,), EARLYOOM: EARLYOOM_RESTART_COMMANDS, OLLAMA: OLLAMA_RESTART_COMMANDS}[name]


def _clock_setting(mhz: int) -> Setting:
    apply_commands = (RELOAD_COMMAND, ("systemctl", "enable", CLOCK_UNIT), ("systemctl", "restart", CLOCK_UNIT))
    read_value = _value_reader(CLOCK_CAP_PATTERN, "{} MHz")
    return Setting(CLOCK, f"{mhz} MHz", lambda _: CLOCK_UNIT_TEXT.format(mhz), read_value, apply_commands)


def _swappiness_setting(value: int) -> Setting:
    apply_commands = (("sysctl", "-w", f"vm.swappiness={value}"),)
    read_value = _value_reader(r"swappiness = (\d+)", "{}")
    text, variables = f"vm.swappiness = {value}\n", {"vm.swappiness": str(value)}
    return Setting(SWAPPINESS, str(value), lambda _: text, read_value, apply_commands, variables=variables)


def _earlyoom_setting(percent: int) -> Setting:
    line = f'EARLYOOM_ARGS="-m {percent}"'

    def build_content(current: str) -> str:
        if EARLYOOM_ARGS_PATTERN.search(current):
            return EARLYOOM_ARGS_PATTERN.sub(line, current, count=1)
        return f"{current.rstrip()}\n{line}\n".lstrip()

    missing_file_fix = "Install earlyoom first (`sudo apt install earlyoom`), or remove earlyoom_percent."
    read_value = _value_reader(r"^(EARLYOOM_ARGS=.*)$", "{}")
    return Setting(EARLYOOM, line, build_content, read_value, EARLYOOM_RESTART_COMMANDS, missing_file_fix)


def _ollama_setting(limits: Mapping[str, Any]) -> Setting:
    variables = {}
    for key, value in limits.items():
        if key not in OLLAMA_KEYS:
            raise ValueError(f"unknown ollama_limits key '{str(key)[:40]}'; the keys are {', '.join(OLLAMA_KEYS)}.")
        variable, pattern = OLLAMA_KEYS[key]
        if isinstance(value, bool) or not pattern.fullmatch(str(value)):
            raise ValueError(f"invalid ollama_limits.{key}: '{str(value)[:40]}'.")
        variables[variable] = str(value)
    lines = [f'Environment="{variable}={value}"' for variable, value in variables.items()]
    text = "\n".join(["# Written by sparkwright; `sparkwright provision --undo` removes it.", "[Service]", *lines, ""])
    value_text = ", ".join(f"{key} {value}" for key, value in limits.items())

    def read_value(text: str) -> str | None:
        return ", ".join(re.findall(r'Environment="([^"]*)"', text)) or None

    return Setting(OLLAMA, value_text, lambda _: text, read_value, OLLAMA_RESTART_COMMANDS, variables=variables)


def _value_reader(pattern: str, template: str) -> Callable[[str], str | None]:
    def read_value(text: str) -> str | None:
        match = re.search(pattern, text, re.MULTILINE)
        return template.format(match[1]) if match else None

    return read_value


def _check_number(name: str, value: Any, value_range: tuple[int, int]) -> int:
    if type(value) is not int or not value_range[0] <= value <= value_range[1]:
        raise ValueError(
            f"{name} must be a whole number from {value_range[0]} to {value_range[1]}, got '{str(value)[:40]}'."
        )
    return value
