"""Run `python -I -S .../sparkwright/guard start RING` under a runner, or `service FOLDER` under systemd or cron.

It imports only built-in modules, and not the parent package, because everything imported stays in memory.
"""

import os
import sys


def _register_package() -> None:
    """Make `sparkwright.guard` importable without importing `sparkwright` itself."""
    package_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is 2 MB
    package = type(sys)("sparkwright")
    package.__path__ = [os.path.dirname(package_folder)]  # noqa: PTH120
    sys.modules.setdefault("sparkwright", package)


def main(arguments: list[str]) -> int:
    """Guard a start or run the service, and return the exit code."""
    if arguments[:1] == ["start"] and len(arguments) == 2:
        from sparkwright.guard import start

        return start.main(arguments[1])
    if arguments[:1] == ["service"] and len(arguments) == 2:
        from sparkwright.guard import service

        return service.main(arguments[1])
    sys.stderr.write("usage: guard start RING | service FOLDER\n")
    return 2


if __name__ == "__main__":
    _register_package()
    sys.exit(main(sys.argv[1:]))
