"""List known vulnerabilities in the hosts' runtime and in this environment: `make audit`.

Fails on those that another version fixes, and lists them. A service that cannot be reached, or that knows no package, is
said and fails nothing: pip-audit itself calls that "No known vulnerabilities found". Arguments are handed to pip-audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from sparkwright.remote import runtime

TARGETS = {
    "the runtime of hosts": ["--disable-pip", "--require-hashes", "--requirement", str(runtime.REQUIREMENTS_FILE)],
    "this environment": ["--local", "--skip-editable"],
}
DEADLINE_S = 120


def main(more: list[str]) -> int:
    """Return 1 if a vulnerability has a fix."""
    code = 0
    for what, words in TARGETS.items():
        packages, trouble = asked([*words, *more])
        known = [one for one in packages if "vulns" in one]
        if not known:
            print(f"pip-audit: no vulnerability data reachable, not checked{f' ({trouble})' if trouble else ''}")
            return code
        lines = [line for one in known for line in findings(one)]
        unknown = f", {len(packages) - len(known)} unknown to the service" if len(known) < len(packages) else ""
        print(f"pip-audit: {what}: {len(known)} packages checked{unknown}, {len(lines)} vulnerabilities known")
        print("".join(f"  {line}\n" for line, _ in lines), end="")
        code |= any(fixed for _, fixed in lines)
    return code


def asked(words: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Return every package as reported by pip-audit, and its error output if there is no report."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        said = subprocess.run([*command, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        packages: list[dict[str, Any]] = json.loads(said.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"no answer within {DEADLINE_S} s"
    except (ValueError, KeyError):
        return [], next(reversed(said.stderr.strip().splitlines()), "")
    return packages, ""


def findings(package: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return a line for each vulnerability, and whether another version fixes it."""
    return [
        (
            f"{package['name']} {package['version']}: {one['id']}, "
            + (f"fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "no version fixes it yet"),
            bool(one["fix_versions"]),
        )
        for one in package["vulns"]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
