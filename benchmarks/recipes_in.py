"""Count the recipes of a public registry that are imported completely, imported with questions, or refused, with the reasons.

python -m benchmarks.recipes_in FOLDER 'models/*/*.yaml' [FOLDER PATTERN ...]    FOLDER: your clone; nothing is fetched
"""

import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing import format_detection, recipe_builder
from sparkwright.project.importing.foreign_recipe import ImportReport

#: phrases by which refusals are grouped; the first one that a message contains counts
REASONS = (
    "mods", "vLLM-Omni", "more than 8 Sparks", "cannot be split over hosts", "can serve only from one", "duplicate key",
)  # fmt: skip


def import_recipe(path: Path) -> tuple[str, list[str]]:
    """Return the result ("complete", "questions", "refused" or "traceback"), and the questions' keys or the reason."""
    report = ImportReport()
    try:
        recipe_builder.build_recipe(
            format_detection.parse(document.read_text(path), path, report), "", report, path.name
        )
    except Refused as error:
        return "refused", [next((reason for reason in REASONS if reason in str(error)), error.message)]
    except Exception:
        traceback.print_exc()
        return "traceback", [path.name]
    keys = sorted({question.key.partition(".")[0] for question in report.questions})
    return ("questions", keys) if keys else ("complete", [])


def main(words: list[str]) -> int:
    """Print a row per registry with the reasons below it. Return the number of tracebacks."""
    crashed = 0
    for folder, pattern in zip(words[::2], words[1::2], strict=True):
        results = [import_recipe(path.resolve()) for path in sorted(Path(folder).glob(pattern))]
        ends = Counter(end for end, _ in results)
        commit = subprocess.run(
            ["git", "-C", folder, "log", "-1", "--format=%h %cs"], capture_output=True, text=True, check=False
        )
        print(f"{Path(folder).name} {commit.stdout.strip()}: {len(results)} recipes, {dict(ends)}")
        for end in ("questions", "refused"):
            for reason, times in Counter(
                reason for result, reasons in results if result == end for reason in reasons
            ).most_common():
                print(f"  {end:<10} {times:>4}  {reason}")
        crashed += ends["traceback"]
    return crashed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
