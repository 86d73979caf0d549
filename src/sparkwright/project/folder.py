"""The user's folder: hosts/, recipes/, playbooks/, templates/ and spark.lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright import here as place
from sparkwright.errors import Refused
from sparkwright.project.documents import document

MARK = "hosts"


@dataclass(frozen=True, slots=True)
class Project:
    """root: the folder that holds hosts/."""

    root: Path

    @classmethod
    def here(cls) -> Project:
        """The project of the folder that the command speaks from, or one above it. Raises Refused when there is none."""
        here = place.folder()
        for folder in (here, *here.parents):
            if (folder / MARK).is_dir() and (folder / "playbooks").is_dir():
                return cls(folder)
        fix = "Run `sparkwright init` in an empty directory."
        raise Refused(f"no hosts/ and playbooks/ in {here} or a parent directory.", fix=fix)

    @classmethod
    def here_or_cwd(cls) -> Path:
        """The project's folder, or the current one where there is no project: for what needs no host."""
        try:
            return cls.here().root
        except Refused:
            return place.folder()

    def playbook(self, name: str) -> Path:
        """playbooks/NAME.yml, or the path itself when it is one. Raises Refused naming the playbooks there are."""
        for path in (self.root / "playbooks" / f"{name}.yml", place.folder() / name):
            if path.is_file():
                return path
        from sparkwright.project.documents.validation import nearest

        document.refuse_other_ending(self.root / "playbooks" / f"{name}.yml")
        known = [path.stem for path in (self.root / "playbooks").glob("*.yml")]
        raise Refused(f"no playbook {name!r}.", fix=nearest(name, known))
