"""The project folder: hosts/, recipes/, spark.lock, and the project's own or changed playbooks and templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright import here
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document

#: a project has HOSTS_FOLDER and at least one of OTHER_FOLDERS
HOSTS_FOLDER, OTHER_FOLDERS = "hosts", ("recipes", "playbooks")


@dataclass(frozen=True, slots=True)
class Project:
    """A project's folder."""

    root: Path

    @classmethod
    def here(cls) -> Project:
        """Return the project that contains the current folder. Raises Refused if there is none."""
        current = here.project_folder()
        for folder in (current, *current.parents):
            if cls.is_project(folder):
                return cls(folder)
        fix = "Run `sparkwright init` in an empty directory."
        raise Refused(f"no hosts/ and recipes/ in {current} or a parent directory.", fix=fix)

    @staticmethod
    def is_project(folder: Path) -> bool:
        return (folder / HOSTS_FOLDER).is_dir() and any((folder / name).is_dir() for name in OTHER_FOLDERS)

    @classmethod
    def here_or_cwd(cls) -> Path:
        """Return the project's folder, or the current folder if there is no project."""
        try:
            return cls.here().root
        except Refused:
            return here.project_folder()

    def playbook(self, name: str) -> Path:
        """Return the path of playbooks/NAME.yml, from the project or shipped, or the name itself if it is a path.

        Raises Refused, suggesting the nearest name, if there is no such playbook.
        """
        if path := shipped_files.find_file(self.root, f"playbooks/{name}.yml"):
            return path
        if document.is_file(path := here.project_folder() / name):
            return path
        if (shipped := shipped_files.find_file(self.root, name)) and name.startswith("playbooks/"):
            return shipped
        from sparkwright.project.documents.validation import suggest_name

        document.refuse_yaml_suffix(self.root / "playbooks" / f"{name}.yml")
        playbooks = [path.stem for path in shipped_files.list_paths(self.root, "playbooks/*.yml")]
        raise Refused(f"no playbook {name!r}.", fix=suggest_name(name, playbooks))
