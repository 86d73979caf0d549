"""Read the options from the real `vllm serve --help=all`.

`python -m tests.sandbox.vllm.serve_help` prints them in the format of src/sparkwright/sandbox/vllm/options-0.32.0.txt.
"""

import re
from collections.abc import Iterator
from pathlib import Path

HELP = Path(__file__).parents[2] / "data" / "vllm-0.32.0" / "serve-help-all.txt"
HEADER = """\
# Options of `vllm serve` 0.32.0, from the output of --help=all. Columns: names, kind, metavar in the help.
# Kinds: switch: no value; value: one word; optional: at most one word; list: words; choices: one of the metavar; json: a mapping.
"""
JSON_DESCRIPTION = "valid JSON string"


def split_options(text: str) -> Iterator[list[str]]:
    """Yield the lines of each option."""
    block: list[str] = []
    for line in text.splitlines():
        if re.match(r"^  -\S", line):
            if block:
                yield block
            block = [line]
        elif block and line.startswith(" " * 20):
            block.append(line)
    yield block


def option_header(block: list[str]) -> str:
    """Return an option's first line without its description, such as `--model MODEL`."""
    return re.split(r"\s{2,}", block[0].strip())[0]


def format_rows(text: str) -> list[str]:
    """Return a tab-separated row for each option."""
    return [
        _format_row(option_header(block), " ".join(part.strip() for part in block[1:])) for block in split_options(text)
    ]


def _format_row(header: str, description: str) -> str:
    names = re.findall(r"(?:^|, )(-[^\s,]+)", header)
    metavar = header[len(names[0]) :]
    if len(names) > 1:
        metavar = metavar.partition(f", {names[1]}")[0]
    kind, metavar = _option_kind(metavar.strip(), description)
    return "\t".join([" ".join(names), kind, metavar]).rstrip()


def _option_kind(metavar: str, description: str) -> tuple[str, str]:
    if not metavar:
        return "switch", ""
    if metavar.endswith("...]"):
        return "list", metavar.partition(" [")[0]
    if re.fullmatch(r"\[\w+\]", metavar):
        return "optional", metavar.strip("[]")
    if re.fullmatch(r"\{[^}]*\}", metavar):
        return "choices", metavar
    return ("json" if JSON_DESCRIPTION in description else "value"), metavar


if __name__ == "__main__":
    print(HEADER + "\n".join(format_rows(HELP.read_text())))
