"""Simulated Sparks over real ssh: containers with systemd, sshd and their own Docker Engine, and a registry.

    python3 molecule/bed/bed.py up [--hosts N]      build what is missing, start, wait until ssh and docker answer
    python3 molecule/bed/bed.py down                remove containers, registry and .bed/
    python3 molecule/bed/bed.py status

Standard library only. Needs root, Docker, debootstrap and docker-registry (Debian packages). All ports are on 127.0.0.1; keys,
known_hosts, an ssh configuration and a project to deploy from are written into .bed/.
"""

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
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
TOP = HERE.parent.parent
BED = TOP / ".bed"
SSH_PORT = 22201
REGISTRY_PORT = 5000
#: the hosts' network, on which a host keeps its address when it boots again
NETWORK, ADDRESS_PREFIX = "sparkwright-bed", "10.213.77"
PACKAGES = "openssh-server,python3,procps,sudo,iproute2,ca-certificates,curl"
IMAGE = f"127.0.0.1:{REGISTRY_PORT}/vllm/vllm-openai"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("up", "down", "status"))
    parser.add_argument("--hosts", type=int, default=1)
    options = parser.parse_args()
    verbs = {"up": lambda: up(options.hosts), "down": down, "status": status}
    verbs[options.verb]()
    return 0


def up(hosts: int) -> None:
    """Start the parts of the bed that are not running. A second `up` waits for the first."""
    BED.mkdir(exist_ok=True)
    lock = (BED / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends
    write_ssh_files()
    base = build_base_image()
    spark = build_image("spark", base)
    start_registry(build_image("vllm", base))
    create_network()
    for n in range(1, hosts + 1):
        start_host(n, spark)
    for n in range(1, hosts + 1):
        wait_for_host(n)
        open_tunnel(n)
    write_project(hosts)
    say(f"up: {hosts} simulated Spark(s). With .bed/bin first on the PATH: ssh spark1, and deploys from .bed/project")
    if hosts > 1:
        write_pair_project()
        say("a cluster of the first two: `deploy --host pair` from .bed/pair")


def down() -> None:
    """Remove everything except the images, which are a cache."""
    # one by one: several containers that leave a network at the same moment can block Docker's engine (20.10)
    for name in run(["docker", "ps", "-aq", "--filter", "label=sparkwright.bed"], check=False).split():
        run(["docker", "rm", "-fv", name])
    run(["docker", "network", "rm", NETWORK], check=False)
    for file in BED.glob("*.pid"):
        try:
            os.kill(int(file.read_text()), signal.SIGTERM)
        except (ProcessLookupError, ValueError):
            continue
    shutil.rmtree(BED, ignore_errors=True)
    say("down")


def status() -> None:
    print(run(["docker", "ps", "--filter", "label=sparkwright.bed", "--format", "{{.Names}} {{.Status}}"]) or "down")


# -- images ------------------------------------------------------------------------------------------------------------


def build_base_image() -> str:
    """Build Debian with sshd and Python with debootstrap, from the mirror that apt uses."""
    name = f"sparkwright-bed-base:{short_hash(PACKAGES.encode())}"
    if not image_exists(name):
        say("building the Debian base (about a minute and a half)")
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


def build_image(kind: str, base: str) -> str:
    """Build the image for a simulated Spark ("spark") or its vLLM ("vllm"), named by a hash of its inputs."""
    context = BED / f"context-{kind}"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    for path in HERE.iterdir():
        if path.is_file() and path.suffix != ".py" and not path.name.startswith("README"):
            shutil.copy(path, context)
    shutil.copy(BED / "id.pub", context / "authorized_keys")
    copy_sandbox(context / "sandbox")
    if kind == "vllm":
        (context / "authorized_keys").write_text("")  # the same image for all keys
    tag = short_hash(
        b"".join(path.read_bytes() for path in sorted(context.rglob("*")) if path.is_file()) + base.encode()
    )
    name = f"sparkwright-bed-{kind}:{tag}"
    if not image_exists(name):
        say(f"building the image {kind}")
        options = ["--build-arg", f"BASE={base}", "-t", name, "-f", str(context / f"Dockerfile.{kind}")]
        run(["docker", "build", "-q", *options, str(context)], env={"DOCKER_BUILDKIT": "0"})
    shutil.rmtree(context, ignore_errors=True)
    return name


def copy_sandbox(target: Path) -> None:
    """Copy the sandbox's code and the modules that it imports, which need only Python."""
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


def start_registry(vllm: str) -> None:
    """Start Debian's docker-registry on loopback, with the simulated vLLM's image under its tags."""
    is_running = answers(f"http://127.0.0.1:{REGISTRY_PORT}/v2/")
    if is_running and not (BED / "registry.pid").exists():
        sys.exit(f"bed: another registry uses port {REGISTRY_PORT}: `make bed-down` where it was started, or stop it")
    if not is_running:
        config = BED / "registry.yml"
        config.write_text(
            "version: 0.1\nlog: {level: error}\n"
            f"storage: {{filesystem: {{rootdirectory: {BED}/registry}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '127.0.0.1:{REGISTRY_PORT}'}}\n"
        )
        start_background("registry", ["docker-registry", "serve", str(config)])
        wait_until(lambda: answers(f"http://127.0.0.1:{REGISTRY_PORT}/v2/"), "the registry")
    for tag in ("v0.32.0", "moving"):
        run(["docker", "tag", vllm, f"{IMAGE}:{tag}"])
        run(["docker", "push", "-q", f"{IMAGE}:{tag}"])
    push_other_architecture()


def push_other_architecture() -> None:
    """Push a tag whose index lists only linux/s390x, which no host of this bed can run."""
    import urllib.request

    def send(path: str, **options: object) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{REGISTRY_PORT}/v2/vllm/vllm-openai{path}", **options)  # type: ignore[arg-type]
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    prefix = "application/vnd.docker.distribution.manifest"
    manifest_type, index_type = f"{prefix}.v2+json", f"{prefix}.list.v2+json"
    manifest = send("/manifests/v0.32.0", headers={"Accept": manifest_type})
    entry = {
        "mediaType": manifest_type,
        "size": len(manifest),
        "digest": "sha256:" + hashlib.sha256(manifest).hexdigest(),
        "platform": {"architecture": "s390x", "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": index_type, "manifests": [entry]}
    headers = {"Content-Type": index_type}
    send("/manifests/other-arch", data=json.dumps(index).encode(), headers=headers, method="PUT")


# -- hosts -------------------------------------------------------------------------------------------------------------


def create_network() -> None:
    if NETWORK not in run(["docker", "network", "ls", "--format", "{{.Name}}"]).split():
        run(["docker", "network", "create", "--subnet", f"{ADDRESS_PREFIX}.0/24", NETWORK])


def host_address(n: int) -> str:
    return f"{ADDRESS_PREFIX}.{10 + n}"


def start_host(n: int, image: str) -> None:
    """Boot a host. The long list of flags replaces --privileged, which may be refused."""
    name = f"sparkwright-bed-spark{n}"
    filters = ["--filter", f"name=^{name}$", "--filter", f"network={NETWORK}"]
    if run(["docker", "ps", "--format", "{{.Image}}", *filters]).strip() == image:
        return  # the image contains this checkout's key and code, so another checkout's host is replaced
    run(["docker", "rm", "-fv", name], check=False)
    unconfined = [f"--security-opt={kind}=unconfined" for kind in ("seccomp", "apparmor", "systempaths")]
    mounts = ["-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", *(f"--tmpfs={path}" for path in ("/run", "/run/lock", "/tmp"))]
    devices = ["--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--device-cgroup-rule", "a *:* rwm", "--device", "/dev/fuse"]
    names = ["--name", name, "--hostname", f"spark{n}", "--label", "sparkwright.bed"]
    network = ["--network", NETWORK, "--ip", host_address(n), "-p", f"127.0.0.1:{SSH_PORT + n - 1}:22"]
    run(["docker", "run", "-d", *names, *network, *unconfined, *devices, *mounts, image])


def wait_for_host(n: int) -> None:
    """Wait until a host's sshd and Docker Engine answer, and write its key into known_hosts."""
    name = f"sparkwright-bed-spark{n}"
    booted = "docker info >/dev/null 2>&1 && test -e /run/sshd || ls /run/systemd/system >/dev/null"
    wait_until(lambda: run_inside(name, booted), name)
    wait_until(lambda: run_inside(name, "docker info"), f"the Docker Engine of {name}")
    wait_until(lambda: run_inside(name, "ss -tln | grep -q ':22 '"), f"sshd of {name}")
    key = run(["docker", "exec", name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).split()
    known_hosts = BED / "known_hosts"
    lines = known_hosts.read_text().splitlines() if known_hosts.exists() else []
    address = f"[127.0.0.1]:{SSH_PORT + n - 1} "
    lines = [*(line for line in lines if not line.startswith(address)), f"{address}{key[0]} {key[1]}"]
    known_hosts.write_text("\n".join(lines) + "\n")


def open_tunnel(n: int) -> None:
    """Forward the registry to the host's own loopback, where its engine accepts it without TLS."""

    def is_open() -> bool:
        return run_inside(f"sparkwright-bed-spark{n}", f"ss -tln | grep -q '127.0.0.1:{REGISTRY_PORT} '")

    if is_open():
        return
    forward = f"127.0.0.1:{REGISTRY_PORT}:127.0.0.1:{REGISTRY_PORT}"
    options = ["-F", str(BED / "ssh_config"), "-l", "guest", "-N", "-o", "ExitOnForwardFailure=yes", "-R", forward]
    start_background(f"tunnel{n}", ["ssh", *options, f"spark{n}"])
    wait_until(is_open, "the tunnel")


def run_inside(name: str, script: str) -> bool:
    """Return True if a shell command succeeds on a host."""
    words = ["docker", "exec", name, "sh", "-c", script]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


# -- the user's files --------------------------------------------------------------------------------------------------


def write_ssh_files() -> None:
    """Write a key pair, an ssh configuration with the hosts' names, and an `ssh` for the PATH that reads it."""
    if not (BED / "id").exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(BED / "id")])
    blocks = [f"Host spark{n}\n  HostName 127.0.0.1\n  Port {SSH_PORT + n - 1}\n" for n in range(1, 9)]
    common = f"Host *\n  User ops\n  IdentityFile {BED}/id\n  IdentitiesOnly yes\n  IdentityAgent none\n"
    (BED / "ssh_config").write_text("".join(blocks) + common + f"  UserKnownHostsFile {BED}/known_hosts\n")
    wrapper = BED / "bin/ssh"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{BED}/ssh_config" "$@"\n')
    wrapper.chmod(0o755)


def write_project(hosts: int) -> None:
    """Write a project with the simulated Sparks as hosts, and a recipe with the simulated vLLM."""
    folder = copy_starter(BED / "project")
    (folder / "recipes" / "bed.yml").write_text((HERE / "recipe.yml").read_text())
    (folder / "hosts" / "groups.yml").write_text(
        "all:\n  env: {HF_ENDPOINT: 'http://127.0.0.1:8080'}\n  recipe: bed\n  vars: {reserve_gib: 0.5}\nlab: {}\n"
    )
    for n in range(1, hosts + 1):
        (folder / "hosts" / f"spark{n}.yml").write_text(f"address: spark{n}\ngroups: [lab]\n")


def write_pair_project() -> None:
    """Write a project in which the first two hosts are a cluster; the network of the containers is their fabric."""
    folder = copy_starter(BED / "pair")
    (folder / "recipes" / "pair.yml").write_text((HERE / "pair.yml").read_text())
    (folder / "hosts" / "groups.yml").write_text(
        "all:\n  env: {HF_ENDPOINT: 'http://127.0.0.1:8080'}\n  vars: {reserve_gib: 0.5}\n"
        "pair: {hosts: [spark1, spark2], cluster: {recipe: pair, head: spark1}}\n"
    )
    for n in (1, 2):
        text = f"address: spark{n}\nfabric: {{interfaces: [eth0], address: {host_address(n)}}}\n"
        (folder / "hosts" / f"spark{n}.yml").write_text(text)


def copy_starter(folder: Path) -> Path:
    for name in ("playbooks", "templates", "recipes"):
        shutil.copytree(TOP / name, folder / name, dirs_exist_ok=True)
    (folder / "hosts").mkdir(exist_ok=True)
    return folder


# -- helpers -----------------------------------------------------------------------------------------------------------


def run(words: list[str], *, check: bool = True, env: dict[str, str] | None = None) -> str:
    """Return a command's output; exit if it fails."""
    result = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    if check and result.returncode:
        sys.exit(f"bed: {' '.join(words[:4])} ...: {result.stderr.strip()[-600:] or result.stdout.strip()[-600:]}")
    return result.stdout


def start_background(name: str, words: list[str]) -> None:
    """Start a process that runs until `down`."""
    with (BED / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (BED / f"{name}.pid").write_text(str(process.pid))


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 90) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit(f"bed: {what} did not start")
        time.sleep(0.1)


def answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def image_exists(image: str) -> bool:
    return bool(run(["docker", "images", "-q", image]).strip())


def short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def say(text: str) -> None:
    print(f"bed: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
