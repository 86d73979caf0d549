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
    """A project's folder."""

    #: the folder that holds hosts/
    root: Path

    @classmethod
    def here(cls) -> Project:
        """Return the project of the current folder or of a parent. Raises Refused if there is none."""
        here = place.folder()
        for folder in (here, *here.parents):
            if (folder / MARK).is_dir() and (folder / "playbooks").is_dir():
                return cls(folder)
        fix = "Run `sparkwright init` in an empty directory."
        raise Refused(f"no hosts/ and playbooks/ in {here} or a parent directory.", fix=fix)

    @classmethod
    def here_or_cwd(cls) -> Path:
        """Return the project's folder, or the current folder if there is no project: for commands that need no host."""
        try:
            return cls.here().root
        except Refused:
            return place.folder()

    def playbook(self, name: str) -> Path:
        """Return the path of playbooks/NAME.yml, or the name itself if it is a path. Raises Refused with the nearest playbook."""
        for path in (self.root / "playbooks" / f"{name}.yml", place.folder() / name):
            if path.is_file():
                return path
        from sparkwright.project.documents.validation import nearest

        document.refuse_other_ending(self.root / "playbooks" / f"{name}.yml")
        known = [path.stem for path in (self.root / "playbooks").glob("*.yml")]
        raise Refused(f"no playbook {name!r}.", fix=nearest(name, known))
