"""Simulated Sparks over real ssh: containers with systemd, sshd and their own Docker Engine, and a registry.

    python3 molecule/bed/bed.py up [--hosts N]      build what is missing, start, wait until ssh and docker answer
    python3 molecule/bed/bed.py down                remove containers, registry and .bed/
    python3 molecule/bed/bed.py status

Standard library only. Needs root, Docker, debootstrap and docker-registry (Debian packages). Everything is reached through
ports of 127.0.0.1; keys, known_hosts, an ssh configuration and a project to deploy from are laid into .bed/.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TOP = HERE.parent.parent
BED = TOP / ".bed"
SSH_PORT = 22201
REGISTRY_PORT = 5000
PACKAGES = "openssh-server,python3,procps,sudo,iproute2,ca-certificates,curl"
IMAGE = f"127.0.0.1:{REGISTRY_PORT}/vllm/vllm-openai"


def main() -> int:
    """Do one of up, down, status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("up", "down", "status"))
    parser.add_argument("--hosts", type=int, default=1)
    given = parser.parse_args()
    verbs = {"up": lambda: up(given.hosts), "down": down, "status": status}
    verbs[given.verb]()
    return 0


def up(hosts: int) -> None:
    """Start the bed; running parts are kept. A second `up` waits for the first."""
    BED.mkdir(exist_ok=True)
    lock = (BED / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends
    keys()
    base = base_image()
    spark = built("spark", base)
    vllm = built("vllm", base)
    registry(vllm)
    for n in range(1, hosts + 1):
        start(n, spark)
    for n in range(1, hosts + 1):
        wait_for(n)
        tunnel(n)
    project(hosts)
    say(f"up: {hosts} simulated Spark(s). With .bed/bin first on the PATH: ssh spark1, and deploys from .bed/project")
    if hosts > 1:
        pair()
        say("a cluster of the first two: `deploy --host pair` from .bed/pair")


def down() -> None:
    """Remove everything except the images, which are a cache."""
    names = run(["docker", "ps", "-aq", "--filter", "label=sparkwright.bed"], check=False).split()
    for (
        name
    ) in names:  # one by one: several that leave one network at the same moment can lock up Docker's engine (20.10)
        run(["docker", "rm", "-fv", name])
    for file in BED.glob("*.pid"):
        try:
            os.kill(int(file.read_text()), signal.SIGTERM)
        except (ProcessLookupError, ValueError):
            continue
    shutil.rmtree(BED, ignore_errors=True)
    say("down")


def status() -> None:
    """Print what is running."""
    print(run(["docker", "ps", "--filter", "label=sparkwright.bed", "--format", "{{.Names}} {{.Status}}"]) or "down")


# -- images ------------------------------------------------------------------------------------------------------------


def base_image() -> str:
    """Debian with sshd and Python, made with debootstrap from the mirror that apt uses here."""
    name = f"sparkwright-bed-base:{digest(PACKAGES.encode())}"
    if not exists(name):
        say("making the Debian base (about a minute and a half)")
        mirror = run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]).splitlines()[0]
        rootfs = BED / "rootfs"
        shutil.rmtree(rootfs, ignore_errors=True)
        run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(rootfs), mirror])
        for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*"):
            for path in rootfs.glob(pattern):
                path.unlink()
        archive = subprocess.Popen(["tar", "-C", str(rootfs), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["docker", "import", "-", name], stdin=archive.stdout, check=True, stdout=subprocess.DEVNULL)
        archive.wait()
        shutil.rmtree(rootfs, ignore_errors=True)
    return name


def built(kind: str, base: str) -> str:
    """Build the image of a kind, named by a hash of its inputs."""
    context = BED / f"context-{kind}"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    for path in HERE.iterdir():
        if path.is_file() and path.suffix != ".py" and not path.name.startswith("README"):
            shutil.copy(path, context)
    shutil.copy(BED / "id.pub", context / "authorized_keys")
    sandbox(context / "sandbox")
    if kind == "vllm":
        (context / "authorized_keys").write_text("")  # one image whatever the keys are
    tag = digest(b"".join(path.read_bytes() for path in sorted(context.rglob("*")) if path.is_file()) + base.encode())
    name = f"sparkwright-bed-{kind}:{tag}"
    if not exists(name):
        say(f"building the image {kind}")
        words = [
            "docker",
            "build",
            "-q",
            "--build-arg",
            f"BASE={base}",
            "-t",
            name,
            "-f",
            str(context / f"Dockerfile.{kind}"),
        ]
        run([*words, str(context)], env={"DOCKER_BUILDKIT": "0"})
    shutil.rmtree(context, ignore_errors=True)
    return name


def sandbox(target: Path) -> None:
    """The sandbox's own code, the bounds it reads with and the values that it takes, which need nothing but Python."""
    source = TOP / "src" / "sparkwright"
    package = target / "sparkwright"
    package.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("sandbox", "trust", "engines/probes"):
        shutil.copytree(source / part, package / part, ignore=ignore)
    engines = ("__init__", "api_paths", "findings", "flags", "http", "openai_api", "option_table", "options")
    vllm = ("__init__", "options", "option_values", "speculation")
    (package / "engines" / "vllm").mkdir()
    parts = (*(f"engines/{name}" for name in engines), *(f"engines/vllm/{name}" for name in vllm))
    for name in ("__init__", "errors", "ready", "units", "version", "visible", *parts):
        shutil.copy(source / f"{name}.py", package / f"{name}.py")
    shutil.copy(source / "engines/vllm/options.json", package / "engines/vllm/options.json")


# -- registry ----------------------------------------------------------------------------------------------------------


def registry(vllm: str) -> None:
    """Debian's docker-registry on loopback, holding the stand-in image under its tags."""
    there = answers(f"http://127.0.0.1:{REGISTRY_PORT}/v2/")
    if there and not (BED / "registry.pid").exists():
        sys.exit(f"bed: another registry holds port {REGISTRY_PORT}: `make bed-down` where it was started, or stop it")
    if not there:
        config = BED / "registry.yml"
        config.write_text(
            "version: 0.1\nlog: {level: error}\n"
            f"storage: {{filesystem: {{rootdirectory: {BED}/registry}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '127.0.0.1:{REGISTRY_PORT}'}}\n"
        )
        background("registry", ["docker-registry", "serve", str(config)])
        until(lambda: answers(f"http://127.0.0.1:{REGISTRY_PORT}/v2/"), "the registry")
    for tag in ("v0.32.0", "moving"):
        run(["docker", "tag", vllm, f"{IMAGE}:{tag}"])
        run(["docker", "push", "-q", f"{IMAGE}:{tag}"])
    arm_only()


def arm_only() -> None:
    """A tag whose index names only linux/s390x: no host of this bed can run it."""
    import urllib.request

    def ask(path: str, **given: object) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{REGISTRY_PORT}/v2/vllm/vllm-openai{path}", **given)  # type: ignore[arg-type]
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = ask("/manifests/v0.32.0", headers={"Accept": kind})
    entry = {
        "mediaType": kind,
        "size": len(manifest),
        "digest": "sha256:" + hashlib.sha256(manifest).hexdigest(),
        "platform": {"architecture": "s390x", "os": "linux"},
    }
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json",
        "manifests": [entry],
    }
    headers = {"Content-Type": index["mediaType"]}
    ask("/manifests/other-arch", data=json.dumps(index).encode(), headers=headers, method="PUT")


# -- hosts -------------------------------------------------------------------------------------------------------------


def start(n: int, image: str) -> None:
    """Boot a host. The long list of flags replaces --privileged, which may be refused."""
    name = f"sparkwright-bed-spark{n}"
    if run(["docker", "ps", "--format", "{{.Image}}", "--filter", f"name=^{name}$"]).strip() == image:
        return  # the image holds this checkout's key and code: another checkout's host is replaced
    run(["docker", "rm", "-fv", name], check=False)
    looser = [f"--security-opt={kind}=unconfined" for kind in ("seccomp", "apparmor", "systempaths")]
    mounts = ["-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", *(f"--tmpfs={path}" for path in ("/run", "/run/lock", "/tmp"))]
    devices = ["--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--device-cgroup-rule", "a *:* rwm", "--device", "/dev/fuse"]
    named = [
        "--name",
        name,
        "--hostname",
        f"spark{n}",
        "--label",
        "sparkwright.bed",
        "-p",
        f"127.0.0.1:{SSH_PORT + n - 1}:22",
    ]
    run(["docker", "run", "-d", *named, *looser, *devices, *mounts, image])


def wait_for(n: int) -> None:
    """Wait until sshd and the host's Docker answer; after that the host's key is known."""
    name = f"sparkwright-bed-spark{n}"
    until(
        lambda: inside(name, "docker info >/dev/null 2>&1 && test -e /run/sshd || ls /run/systemd/system >/dev/null"),
        name,
    )
    until(lambda: inside(name, "docker info"), f"the Docker Engine of {name}")
    until(lambda: inside(name, "ss -tln | grep -q ':22 '"), f"sshd of {name}")
    key = run(["docker", "exec", name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).split()
    lines = [line for line in read(BED / "known_hosts").splitlines() if f":{SSH_PORT + n - 1} " not in line]
    lines.append(f"[127.0.0.1]:{SSH_PORT + n - 1} {key[0]} {key[1]}")
    (BED / "known_hosts").write_text("\n".join(lines) + "\n")


def tunnel(n: int) -> None:
    """The registry on the host's own loopback, where an engine allows it without TLS."""
    if inside(f"sparkwright-bed-spark{n}", f"ss -tln | grep -q '127.0.0.1:{REGISTRY_PORT} '"):
        return
    forward = f"127.0.0.1:{REGISTRY_PORT}:127.0.0.1:{REGISTRY_PORT}"
    words = [
        "ssh",
        "-F",
        str(BED / "ssh_config"),
        "-l",
        "guest",
        "-N",
        "-o",
        "ExitOnForwardFailure=yes",
        "-R",
        forward,
        f"spark{n}",
    ]
    background(f"tunnel{n}", words)
    until(lambda: inside(f"sparkwright-bed-spark{n}", f"ss -tln | grep -q '127.0.0.1:{REGISTRY_PORT} '"), "the tunnel")


def inside(name: str, script: str) -> bool:
    """Return True if a shell command succeeds on a host."""
    return (
        subprocess.run(["docker", "exec", name, "sh", "-c", script], capture_output=True, check=False).returncode == 0
    )


# -- what a user has ---------------------------------------------------------------------------------------------------


def keys() -> None:
    """A key pair, an ssh configuration that knows the hosts by their names, and an `ssh` for the PATH that reads it."""
    if not (BED / "id").exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(BED / "id")])
    blocks = [f"Host spark{n}\n  HostName 127.0.0.1\n  Port {SSH_PORT + n - 1}\n" for n in range(1, 9)]
    common = f"Host *\n  User ops\n  IdentityFile {BED}/id\n  IdentitiesOnly yes\n  IdentityAgent none\n"
    (BED / "ssh_config").write_text("".join(blocks) + common + f"  UserKnownHostsFile {BED}/known_hosts\n")
    wrapper = BED / "bin/ssh"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{BED}/ssh_config" "$@"\n')
    wrapper.chmod(0o755)


def project(hosts: int) -> None:
    """A project whose hosts are the simulated Sparks and whose recipe is the stand-in image."""
    folder = starter(BED / "project")
    (folder / "recipes" / "bed.yml").write_text((HERE / "recipe.yml").read_text())
    (folder / "hosts" / "groups.yml").write_text(
        "all:\n  env: {HF_ENDPOINT: 'http://127.0.0.1:8080'}\n  recipe: bed\n  vars: {reserve_gib: 0.5}\nlab: {}\n"
    )
    for n in range(1, hosts + 1):
        (folder / "hosts" / f"spark{n}.yml").write_text(f"address: spark{n}\ngroups: [lab]\n")


def pair() -> None:
    """A project in which the first two hosts are a cluster; the bridge between the containers is their fabric."""
    folder = starter(BED / "pair")
    (folder / "recipes" / "pair.yml").write_text((HERE / "pair.yml").read_text())
    (folder / "hosts" / "groups.yml").write_text(
        "all:\n  env: {HF_ENDPOINT: 'http://127.0.0.1:8080'}\n  vars: {reserve_gib: 0.5}\n"
        "pair: {hosts: [spark1, spark2], cluster: {recipe: pair, head: spark1}}\n"
    )
    for n in (1, 2):
        shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = run(["docker", "inspect", "-f", shown, f"sparkwright-bed-spark{n}"]).strip()
        text = f"address: spark{n}\nfabric: {{interfaces: [eth0], address: {address}}}\n"
        (folder / "hosts" / f"spark{n}.yml").write_text(text)


def starter(folder: Path) -> Path:
    """The files that every project starts from, without its hosts."""
    for name in ("playbooks", "templates", "recipes"):
        shutil.copytree(TOP / name, folder / name, dirs_exist_ok=True)
    (folder / "hosts").mkdir(exist_ok=True)
    return folder


# -- small things ------------------------------------------------------------------------------------------------------


def run(words: list[str], *, check: bool = True, env: dict[str, str] | None = None) -> str:
    """Return a command's output; exit if it fails."""
    said = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    if check and said.returncode:
        sys.exit(f"bed: {' '.join(words[:4])} ...: {said.stderr.strip()[-600:] or said.stdout.strip()[-600:]}")
    return said.stdout


def background(name: str, words: list[str]) -> None:
    """Start a process that runs until `down`."""
    with (BED / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (BED / f"{name}.pid").write_text(str(process.pid))


def until(holds: object, what: str, timeout_s: float = 90) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        if time.monotonic() > deadline_s:
            sys.exit(f"bed: {what} does not come up")
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Return True if a server answers 200."""
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def exists(image: str) -> bool:
    """Return True if the outer engine has this image."""
    return bool(run(["docker", "images", "-q", image]).strip())


def digest(data: bytes) -> str:
    """Return a short hash of some content."""
    return hashlib.sha256(data).hexdigest()[:12]


def read(path: Path) -> str:
    """Return a file's text, or an empty string if it is missing."""
    return path.read_text() if path.exists() else ""


def say(text: str) -> None:
    """Print a progress message."""
    print(f"bed: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
