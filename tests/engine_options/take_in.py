"""Store the options of a release of SGLang or llama.cpp from its package on PyPI, and update the engine's history of options.

    make engine-release ENGINE=sglang VERSION=0.5.23
    make engine-release ENGINE=llama_cpp VERSION=2026.10.11549        # xllamacpp with llama-server b11549

No GPU is needed. SGLang's parser needs torch and transformers, and uses those of the vLLM in .engine (tests/real_engine), which
is installed if necessary. Exit code 0: stored, and the changes printed. 1: the package is not available, or its parser failed.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from sparkwright.engines.llama_cpp import image
from tests.engine_options import kept, table
from tests.engine_options.kept import Option
from tests.real_engine.releases import install
from tests.real_engine.releases.install import EngineMissing, run_quietly

HERE = Path(__file__).parent
PARSER_TIMEOUT_S = 300
SUCCESSOR = re.compile(r"(?:use|in favor of)\s+`?--([\w-]+)")


class ParserFailed(Exception):
    """The parser of a release failed; the message has the reason."""


def query_sglang(version: str, folder: Path) -> tuple[str, list[Option]]:
    """Return a release of SGLang and its options."""
    python = install.ensure_installed(install.NEWEST, print) / "bin" / "python"
    _unpack(str(python), f"sglang=={version}", folder)
    printed = _run_parser([str(python), str(HERE / "ask_sglang.py"), str(folder)])
    rows = json.loads(printed.strip().splitlines()[-1])
    return version, [Option(tuple(row["names"]), row["kind"], row["instead"]) for row in rows]


def query_llama_cpp(version: str, folder: Path) -> tuple[str, list[Option]]:
    """Return the build in a release of xllamacpp and its options, without those that exist only to be refused."""
    _unpack(sys.executable, f"xllamacpp=={version}", folder)
    text = _run_parser([sys.executable, str(HERE / "ask_llama_cpp.py"), str(folder)])
    entries = image.parse_help(text)
    if not entries:
        raise ParserFailed(f"xllamacpp {version} printed no help of llama-server")
    return f"b{version.split('.')[2]}", [_build_llama_option(option, text) for option in entries.values()]


ENGINES: dict[str, Callable[[str, Path], tuple[str, list[Option]]]] = {
    "sglang": query_sglang,
    "llama_cpp": query_llama_cpp,
}


def _build_llama_option(option: image.ListedOption, text: str) -> Option:
    names = [word.removeprefix("--") for word in option.words if word.startswith("--") and word != f"--{option.name}"]
    kind = (
        "switch" if option.off else "bare" if not option.value_count else "two" if option.value_count == 2 else "text"
    )
    help_text = re.search(rf"^-.*--{re.escape(option.name)}\b[^\n]*\n?(?:(?!-).*\n)*", text, re.M)
    successor = SUCCESSOR.search(help_text[0]) if help_text and "DEPRECATED" in help_text[0] else None
    return Option((option.name, *names), kind, successor[1] if successor else "")


def _unpack(python: str, requirement: str, folder: Path) -> None:
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    run_quietly([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement])
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)


def _run_parser(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=PARSER_TIMEOUT_S)
    if result.returncode or not result.stdout.strip():
        raise ParserFailed((result.stderr or result.stdout).strip()[-2000:])
    return result.stdout


def main(engine: str, version: str) -> int:
    """Store the options of a release and return the exit code."""
    before = kept.list_releases(engine)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            release, options = ENGINES[engine](version, Path(scratch))
        except (EngineMissing, ParserFailed) as error:
            print(error, file=sys.stderr)
            return 1
    kept.save(engine, release, options)
    table.write_table(engine)
    older = [name for name in kept.list_releases(engine) if name in before and name != release]
    print(f"{engine} {release}: {len(options)} options")
    for line in table.list_changes(kept.load(engine, older[-1]), options) if older else ():
        print(f"  {line}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ENGINES:
        sys.exit("which release? make engine-release ENGINE=sglang VERSION=0.5.23")
    sys.exit(main(*sys.argv[1:]))
