"""A host with one server of a hostile image: its mounts, and files around them that no container may reach."""

import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.engines.compile_caches import HOST_FOLDER
from sparkwright.host.containers import container_files
from sparkwright.modules.server.container import Container
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.scope import cache_options
from sparkwright.protocol import expressions
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

TOP = Path(__file__).parents[2]
KEY = "e" * 32
PROGRAMS = (
    "sh", "cat", "ln", "mv", "rm", "mkdir", "mknod", "mount", "head", "cp", "chmod", "chown", "truncate", "sleep",
)  # fmt: skip
#: how the hostile image says that it got out
ESCAPE_WORDS = ("READ", "WROTE", "MOUNTED", "DEVICE")
CANARY = "canary"
#: device nodes of a member's network adapters; another node has their place on a machine without any
ADAPTERS = "/dev/infiniband"


def build_image(api: Any, name: str) -> str:
    """Build an image with the hostile server and the local programs that it needs."""
    program_paths = {program: shutil.which(program) or "" for program in PROGRAMS}
    paths = {f"bin/{program}": path for program, path in program_paths.items()}
    for path in program_paths.values():
        libraries = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.split()
        paths |= {word.lstrip("/"): word for word in libraries if word.startswith("/")}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for inside, path in sorted(paths.items()):
            tar.add(Path(path).resolve(), arcname=inside)
        tar.add(Path(__file__).with_name("hostile.sh"), arcname="hostile.sh")
    changes = ['ENTRYPOINT ["/bin/sh", "/hostile.sh"]', "ENV PATH=/bin"]
    api.import_image_from_data(raw.getvalue(), repository=name, tag="v1", changes=changes)
    return f"{name}:v1"


@dataclass
class HostileServer:
    """A host with a hostile server."""

    engine: Any
    #: of the host's user
    home: Path
    #: the hostile one
    image: str
    #: of the server's container
    name: str
    mode: str = "0777"
    secret: str = field(default_factory=lambda: f"canary-{secrets.token_hex(8)}")

    @property
    def context(self) -> RecordingContext:
        return RecordingContext(self.home, secrets={"server_key of one": Secret("spk-" + "5" * 40)})

    # -- the server ----------------------------------------------------------------------------------------------------

    def names(self, end: str, host: Host | None = None, parallel: int = 0, **more: Any) -> dict[str, Any]:
        """Return the names of its recipe that playbooks see, with everything that can be mounted.

        Args:
            end: what the server does at its end.
            host: instead of a host of its own, such as a member of a cluster.
            parallel: hosts that the model is split over.
        """
        project = self.home / "project"
        (project / "recipes").mkdir(parents=True, exist_ok=True)
        for folder in ("models/one", "data/own"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        (self.home / "models/one/config.json").write_text("{}")
        (project / "two.txt").write_text("text")
        env = {"CANARY": str(self.home / "outside" / CANARY), "WORD": self.secret, "MODE": self.mode}
        box = {"name": self.name, "gpus": "", "ipc": "", "ports": [], "env": env, **more}
        box = {"volumes": [f"{self.home}/data/own:/data"], "entrypoint": ["/bin/sh", "/hostile.sh"], **box}
        model = {"id": "a/b", "dir": f"{self.home}/models/one", "mount": "/model"}
        written = {
            "image": self.image,
            "model": model,
            "container": box,
            "files": {"/etc/one/two": {"file": "two.txt"}},
        }
        written |= {"parallel": {"tensor": parallel}} if parallel else {}
        (project / "recipes/one.yml").write_text(json.dumps({**written, "server_key": {"env": "KEY"}}))
        loaded = recipe.load(project, "one")
        target = host or Host("spark1", "spark1", home=str(self.home))
        names = recipe.scope(target, "ops", loaded, {"image": None, "model": None})
        spec = replace(ContainerSpec.from_json(names["container"]), caches=KEY)
        spec = replace(spec, command=(*spec.command, end))
        options = [*names["docker_options"], *map(list, cache_options(loaded, spec, str(self.home)))]
        return {**names, "container": spec.to_json(), "docker_options": options}

    def deploy(self, end: str = "stay", **more: Any) -> Result:
        """Create and start it, as a deploy does."""
        names = self.names(end, **more)
        text = json.dumps(names["container"])
        if not Path(ADAPTERS).exists():
            text = text.replace(f'"{ADAPTERS}"', f'"/dev/null:{ADAPTERS}"')
        args = Container.Args(spec=json.loads(text), files=names["recipe_files"])
        return Container().run(args, self.context)

    def drift(self, **more: Any) -> list[str]:
        """Return the drift that a plan finds."""
        names = self.names("stay", **more)
        context = RecordingContext(self.home, secrets=self.context.secrets, check=True)
        args = Container.Args(spec=json.loads(json.dumps(names["container"])), files=names["recipe_files"])
        return [item["field"] for item in Container().run(args, context).data["drift"]]

    def by_script(self) -> None:
        script = expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), self.names("stay"))
        completed = subprocess.run(["sh", "-c", str(script)], capture_output=True, text=True, check=False, timeout=60)
        assert completed.returncode == 0, (completed.stderr, script)

    def inspect(self, name: str = "") -> dict[str, Any]:
        inspected: dict[str, Any] = self.engine.api.inspect_container(name or self.name)
        return inspected

    def attacked(self, starts: int = 1, name: str = "") -> None:
        """Wait until it has attacked in this many starts."""
        wait_until(lambda: self.log(name).count("ATTACKED") >= starts, f"{starts} attacks")

    def log(self, name: str = "") -> str:
        return str(self.engine.api.logs(name or self.name).decode(errors="replace"))

    def places(self) -> set[str]:
        """Return the places where it could write."""
        return {line.removeprefix("PLACE ") for line in self.log().splitlines() if line.startswith("PLACE ")}

    def writable(self) -> set[str]:
        """Return the paths that its container may write to, from the engine."""
        return {mount["Destination"] for mount in self.inspect()["Mounts"] if mount["RW"]}

    # -- what lies around it -------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """Put a canary in every place that the server must not reach, and record its state."""
        (self.home / "outside").mkdir(exist_ok=True)
        for folder in self.around():
            if folder.is_dir() and not (folder / CANARY).exists():
                (folder / CANARY).write_text(f"{self.secret}\n")

    def around(self) -> list[Path]:
        """Return every parent folder of a mount, and one that nothing is mounted from."""
        state, key = self.home / ".local/state/sparkwright", self.home / HOST_FOLDER / KEY
        parents = [
            self.home / ".local/share/sparkwright",
            self.home / HOST_FOLDER,
            key,
            key / "live",
            key / "live" / self.name,
        ]
        parents += [state, state / "server_keys", state / "recipe_files"]
        return [self.home / "outside", self.home, self.home / "models", self.home / "data", *parents]

    def unharmed(self) -> None:
        """Check that nothing escaped, by the image's own output and by the host's files."""
        containers = self.engine.api.containers(all=True, filters={"name": self.name})
        result = [line for row in containers for line in self.log(row["Id"]).splitlines()]
        assert [line for line in result if line.startswith(ESCAPE_WORDS)] == []
        canaries = {str(item): (item / CANARY).read_text() for item in self.around() if (item / CANARY).exists()}
        assert set(canaries.values()) == {f"{self.secret}\n"}, canaries
        assert str(self.home / "outside") in canaries
        links = [item for item in self.around() if item.is_symlink()]
        assert links == []
        assert (self.home / "models/one/config.json").read_text() == "{}"
        assert sorted(path.name for path in (self.home / "models/one").iterdir()) == ["config.json"]


@contextmanager
def hostile_server(engine: Any, **more: Any) -> Iterator[HostileServer]:
    """Yield a host whose home everyone may enter, since tests may run as root. Everything is removed afterwards."""
    name = f"escape-{secrets.token_hex(4)}"
    home = Path(tempfile.mkdtemp(prefix="sparkwright-test-"))
    server = HostileServer(engine, home, build_image(engine.api, name), name, **more)
    try:
        yield server
    finally:
        for row in engine.api.containers(all=True, filters={"name": name}):
            engine.api.remove_container(row["Id"], force=True, v=True)
        engine.api.remove_image(f"{name}:v1", force=True)
        shutil.rmtree(home, ignore_errors=True) if os.geteuid() else subprocess.run(
            ["rm", "-rf", str(home)], check=False
        )
        if home.exists():
            container_files.run_as_root(
                server.context, home, ("rm", "-rf", "--"), f"{container_files.MOUNT_POINT}/data", mount_parent=False
            )
            subprocess.run(["rm", "-rf", str(home)], check=False)
