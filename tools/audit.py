"""List known vulnerabilities in the hosts' runtime and in this environment: `make audit`.

Fails if another version fixes one of them. A service that cannot be reached, or that knows none of the packages, is
reported without a failure: pip-audit itself would print "No known vulnerabilities found". Arguments are passed to pip-audit.
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


def main(extra_arguments: list[str]) -> int:
    """Return 1 if a vulnerability has a fix."""
    code = 0
    for target, arguments in TARGETS.items():
        packages, error = run_pip_audit([*arguments, *extra_arguments])
        known = [package for package in packages if "vulns" in package]
        if not known:
            print(f"pip-audit: no vulnerability data reachable, not checked{f' ({error})' if error else ''}")
            return code
        lines = [line for package in known for line in findings(package)]
        unknown = f", {len(packages) - len(known)} unknown to the service" if len(known) < len(packages) else ""
        print(f"pip-audit: {target}: {len(known)} packages checked{unknown}, {len(lines)} vulnerabilities known")
        print("".join(f"  {line}\n" for line, _ in lines), end="")
        code |= any(has_fix for _, has_fix in lines)
    return code


def run_pip_audit(arguments: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Return every package as pip-audit reports it, and the last line of its error output if there is no report."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        packages: list[dict[str, Any]] = json.loads(result.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"no answer within {DEADLINE_S} s"
    except (ValueError, KeyError):
        return [], next(reversed(result.stderr.strip().splitlines()), "")
    return packages, ""


def findings(package: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return a line for each vulnerability, and whether another version fixes it."""
    return [
        (
            f"{package['name']} {package['version']}: {entry['id']}, "
            + (f"fixed in {', '.join(entry['fix_versions'])}" if entry["fix_versions"] else "no version fixes it yet"),
            bool(entry["fix_versions"]),
        )
        for entry in package["vulns"]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
