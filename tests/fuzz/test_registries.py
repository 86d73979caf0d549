"""Damaged registries of recipes: the user's files that name them, and hostile repositories."""

from pathlib import Path
from typing import Any

from sparkwright.app import registries as app
from sparkwright.errors import SparkwrightError
from sparkwright.project import registries
from sparkwright.remote.git import File, Repository
from tests.fuzz.harness import damaged_texts, feed
from tests.fuzz.test_user_files import via_project_file

FILE = (
    b"official: {url: https://github.com/spark-arena/recipe-registry, recipes: official-recipes, ref: main}\n"
    b"mine: {url: 'file:///srv/recipes.git'}\n"
)
LOCK = b"official: {url: https://github.com/spark-arena/recipe-registry, commit: " + b"a" * 40 + b"}\n"
OBJECT = b"c" * 40
LISTED = b"".join(
    mode + b" blob " + OBJECT + b" %7d\t" % size + path + b"\0"
    for mode, size, path in (
        (b"100644", 700, b"recipes/4x/tiny-fp8.yaml"),
        (b"100755", 20, b"mods/patchy/run.sh"),
        (b"120000", 11, b"recipes/link.yaml"),
        (b"100644", 2**21, b"recipes/large.yml"),
        (b"100644", 30, b"../../etc/cron.d/run.sh"),
    )
)
PRINTED = OBJECT + b" blob 9\nmodel: a\n\n" + OBJECT + b" missing\n" + OBJECT + b" tree 3\nabc\n"


class FakeRepository(Repository):
    """A repository for which git prints these bytes."""

    printed: bytes = b""

    def _git(self, *words: Any, **options: Any) -> bytes:
        return type(self).printed


def test_file_of_registries(tmp_path: Path) -> None:
    feed(
        via_project_file(tmp_path / registries.REGISTRIES_FILE, lambda: registries.load(tmp_path)),
        damaged_texts([FILE]),
    )


def test_lock_of_registries(tmp_path: Path) -> None:
    (tmp_path / registries.REGISTRIES_FILE).write_bytes(FILE)
    feed(via_project_file(tmp_path / registries.LOCK_FILE, lambda: registries.load(tmp_path)), damaged_texts([LOCK]))


def test_files_of_a_commit(tmp_path: Path) -> None:
    registry = registries.Registry("ours", "file:///srv/recipes.git", "recipes", "main", "a" * 40)

    def read(data: bytes) -> None:
        FakeRepository.printed = data
        repository = FakeRepository(registry.url, registry.name)
        for name in ("tiny-fp8", "4x/tiny-fp8", "nothing"):
            try:
                app._find_recipe_file(repository, registry, registry.commit, name)
            except SparkwrightError as error:
                assert "\n" not in str(error)
        for script in app._list_scripts(repository, registry.commit):
            app._write_file(tmp_path / "inside", script.path, "x")

    feed(read, damaged_texts([LISTED]))
    assert {path.name for path in tmp_path.iterdir()} <= {"inside"}


def test_contents_of_files() -> None:
    files = [File(f"recipes/{number}.yaml", OBJECT.decode(), 9) for number in range(3)]

    def read(data: bytes) -> None:
        FakeRepository.printed = data
        for file, text in FakeRepository("file:///srv/recipes.git", "ours").read_texts(files):
            assert len(app._parse_model_id(text, file.path)) < 100_000

    feed(read, damaged_texts([PRINTED]))
