"""Each check of `doctor` on a host made of files: its findings if all is well, if one thing is wrong, and if it cannot be read."""

import dataclasses
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sparkwright.doctor import known_facts
from sparkwright.doctor.checks import CHECKS, gpu, memory, operating_system, run_checks, services
from sparkwright.doctor.host import FIXES, Finding, Host, IntendedServer
from sparkwright.guard import service
from sparkwright.host.memory import start_guard
from sparkwright.host.records import restart_plans, turns, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.runs.context import SocketDenied
from sparkwright.host.settings_table import CLOCK, CLOCK_UNIT_TEXT, SETTING_PATHS
from sparkwright.units import GIB
from tests.doctor import link_tree, tree
from tests.doctor.tree import INTENDED, MEMINFO, RELEASE, SMI

OSRELEASE = "/proc/sys/kernel/osrelease"
ROCE = {OSRELEASE: "6.17.0-1008-nvidia\n", "/sys/class/infiniband/rocep1s0f0/ports/1/state": "4: ACTIVE\n"}
MODULE = "NVRM version: NVIDIA UNIX {} Module for aarch64  {}  Release Build\n"
LOADED, FIRMWARE = "/proc/driver/nvidia/version", "/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin"
SMI_590 = {"nvidia-smi": "echo 'NVIDIA GB10, 590.44.01'", FIRMWARE: None, LOADED: MODULE.format("Open Kernel", "590.44.01")}  # fmt: skip
OTHER_FIRMWARE = {FIRMWARE: None, "/lib/firmware/nvidia/580.126.09/gsp_ga10x.bin": ""}
MISMATCH = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
NTP_OFF = {operating_system.SYNCHRONIZED_PATH: None, "timedatectl": "printf 'NTP=no\\nNTPSynchronized=no\\n'"}
EARLYOOM = {"/proc/77/comm": "earlyoom\n"}
AVAHI = {"/proc/88/comm": "avahi-daemon\n", "/proc/88/cmdline": "avahi-daemon: running [spark-sandbox-17.local]\0"}
TOO_SMALL = MEMINFO.format(total=int(112.5 * GIB) // 1024, swap_free=16777216)
SWAPPED = MEMINFO.format(total=int(119.7 * GIB) // 1024, swap_free=1024)
OLD_CDI = "kind: nvidia.com/gpu\n# libcuda.so.580.82.09\n"
#: of a toolkit whose service writes the CDI specification to /run
REFRESHED_CDI = {
    "nvidia-ctk": 'echo "NVIDIA Container Toolkit CLI version 1.18.1"', "systemctl": "exit 0", "/etc/cdi/nvidia.yaml": None,
    "/run/cdi/nvidia.yaml": OLD_CDI,
}  # fmt: skip
NO_LINGER = {"/var/lib/systemd/linger/ops": None}
KEEPS_IPC = {**NO_LINGER, "/etc/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=no\n"}

LINK: dict[str, str | None] = {**link_tree.host_files(1), **link_tree.host_programs(1)}
TWIN = "/sys/class/infiniband/roceP2p1s0f1"
KHO = {**LINK, OSRELEASE: "7.0.0-1019-nvidia\n", "/proc/meminfo": link_tree.MEMINFO.replace("30000", "9960000")}

OTA = "nvidia-spark-ota-check"
CAPPED = {SETTING_PATHS[CLOCK]: CLOCK_UNIT_TEXT.format(2000)}
STAT = "77 (VLLM::Engine Core) S 1 77 77 0 -1 4194560 1 0 0 0 4300 200 0 0 20 0 90 0 100 0 0\n"


def find_finding(host: Host, check: str, name: str = "") -> Finding:
    return tree.find_findings(host, check)[name or check]


CheckCase = tuple[str, Mapping[str, str | None], str, str, str, str]


def case(
    check: str, changes: Mapping[str, str | None], verdict: str, evidence: str, fix: str = "", *, name: str = ""
) -> CheckCase:
    """Return a check, changed files and programs, and its finding. evidence: a pattern. fix: a part of it."""
    return check, changes, verdict, evidence, fix, name or check


CASES = [
    case("DGX OS", {"/etc/dgx-release": None}, "warning", "without /etc/dgx-release"),
    case("DGX OS", {"/etc/dgx-release": None, "nvidia-smi": None}, "unknown", "is this a DGX Spark"),
    case("DGX OS", {"/etc/dgx-release": RELEASE.format("6.3.0")}, "bad", "older than DGX OS 7", "Dashboard"),
    case("DGX OS", {"/etc/dgx-release": RELEASE.format("7.9.0")}, "unknown", "newer than 7.5.0"),
    case("DGX OS", {"/etc/dgx-release": 'DGX_NAME="x"\n'}, "unknown", "no version in", "cat"),
    case("DGX OS", {"/proc/meminfo": TOO_SMALL}, "warning", "7.2 GiB less than on other GB10", "Dashboard", name="memory"),
    case("fabric", {"/etc/hostname": "spark1\n"}, "ok", "no link is up"),
    case("fabric", LINK, "ok", "enp1s0f1np1 and enP2p1s0f1np1: 200 Gb/s, MTU 9000, 192.168.100.1/24", name="fabric p1s0f1"),
    case("fabric", {**LINK, f"{TWIN}/ports/1/state": "1: DOWN\n"},
         "warning", "but the other half is up", "enP2p1s0f1np1 up", name="fabric p1s0f1"),
    case("fabric", {**LINK, f"{TWIN}/ports/1/rate": "100 Gb/sec (4X EDR)\n"}, "warning", "100 Gb/s", name="fabric p1s0f1"),
    case("fabric", {**LINK, "/sys/class/net/enp1s0f1np1/mtu": "1500\n"}, "warning", "MTU 1500", "mtu 9000", name="fabric p1s0f1"),
    case("fabric", {**LINK, "ip": "exit 1"}, "warning", "has no IPv4 address", name="fabric p1s0f1"),
    case("fabric", {**LINK, f"{TWIN}/ports/1/gid_attrs/types/3": "IB/RoCE v1\n"}, "bad", "no RoCE v2 GID", "reboot", name="fabric p1s0f1"),
    case("fabric", LINK, "ok", "CmaTotal 0.03 GiB", name="RDMA memory"),
    case("fabric", KHO, "bad", "7.0.0-1019-nvidia: CmaFree 9.5 GiB of CmaTotal 0.03 GiB", "kho=off", name="RDMA memory"),
    case("fabric", {**KHO, "/proc/cmdline": "quiet kho=off\n"}, "ok", "7.0.0-1019-nvidia", name="RDMA memory"),
    case("driver", SMI_590, "warning", "CUDA graph"),
    case("driver", {"nvidia-smi": "echo 'NVIDIA GB10, 701.1'"}, "unknown", "not a branch known"),
    case("driver", {"nvidia-smi": MISMATCH}, "bad", "version mismatch", "sudo reboot"),
    case("driver", {"nvidia-smi": None}, "bad", "nvidia-smi is not installed"),
    case("driver", {"nvidia-smi": None, LOADED: None}, "unknown", "nvidia-smi is not installed"),
    case("driver", {LOADED: MODULE.format("Kernel", "580.95.05")}, "bad", "open kernel modules"),
    case("driver", {LOADED: MODULE.format("Open Kernel", "580.82.09")}, "bad", "580.82.09 is loaded", "reboot", name="firmware"),
    case("driver", OTHER_FIRMWARE, "bad", "driver 580.95.05, GSP firmware 580.126.09", "Dashboard", name="firmware"),
    case("driver", {FIRMWARE: None}, "unknown", "no driver firmware", name="firmware"),
    case("kernel", ROCE, "warning", "RoCE .* rocep1s0f0 is up"),
    case("kernel", {OSRELEASE: "6.17.0-1008-nvidia\n"}, "ok", "6.17"),
    case("kernel", {OSRELEASE: "7.0.0-1019-nvidia\n"}, "ok", "7.0.0-1019"),
    case("kernel", {OSRELEASE: "5.4.0\n"}, "unknown", "5.4.0"),
    case("kernel", {OSRELEASE: None}, "unknown", "cannot read"),
    case("kernel", {"/run/reboot-required": "", "/run/reboot-required.pkgs": "linux-image-x\n"},
         "warning", "reboot required: linux-image-x", "sudo reboot", name="reboot"),
    case("docker", {}, "bad", "no answer from the Docker Engine", "sudo systemctl start docker"),
    case("docker", {"systemctl": "echo disabled; exit 1"}, "bad", "after a reboot", "enable --now", name="docker at boot"),
    case("docker", {"systemctl": None}, "unknown", "unknown whether", name="docker at boot"),
    case("container toolkit", {"/usr/bin/nvidia-container-runtime-hook": None}, "bad", "not configured as a Docker runtime", "ctk"),
    case("container toolkit", {"/usr/bin/nvidia-container-runtime-hook": None, "nvidia-ctk": None}, "bad", "neither", "apt install"),
    case("container toolkit", {"/etc/cdi/nvidia.yaml": OLD_CDI}, "bad", "580.82.09, but 580.95.05", "cdi generate", name="CDI"),
    case("container toolkit", REFRESHED_CDI, "bad", "580.82.09, but 580.95.05", "restart nvidia-cdi-refresh.service", name="CDI"),
    case("container toolkit", {"/etc/cdi/mine.yaml": OLD_CDI}, "bad", "580.82.09", "--output=/etc/cdi/mine.yaml", name="CDI"),
    case("container toolkit", {"/etc/cdi/nvidia.yaml": None}, "ok", "no CDI specification", name="CDI"),
    case("container toolkit", {"/etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu\n"}, "unknown", "lists no driver libraries", name="CDI"),
    case("logout", NO_LINGER, "warning", "RemoveIPC=yes by default", "enable-linger ops"),
    case("logout", KEEPS_IPC, "warning", "RemoveIPC=no in /etc/systemd/logind.conf.d/50.conf; linger is off for ops", "enable-linger ops"),
    case("logout", {"/etc/systemd/logind.conf": None, "/run/systemd/timesync/synchronized": None}, "unknown", "systemd is not running"),
    case("locale", {"/etc/default/locale": 'LANG="de_DE.UTF-8"\n'}, "warning", "de_DE.UTF-8, which is not", "LANG=C.UTF-8"),
    case("locale", {"/etc/default/locale": None}, "ok", "no locale is set"),
    case("locale", {"locale": None}, "unknown", "could not list the installed locales"),
    case("names", {"getent": "exit 2"}, "warning", "does not resolve", "tee -a /etc/hosts"),
    case("names", {"getent": None}, "unknown", "unknown whether"),
    case("names", AVAHI, "warning", "spark-sandbox-17.local instead of spark-sandbox.local", "allow-interfaces=enP7s7", name="avahi"),
    case("names", {"getent": "exit 2"}, "bad", "cannot resolve hub.test", "resolvectl", name="DNS"),
    case("earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m\0" + "20\0"}, "bad", "leaves at most 18.0 GiB", "EARLYOOM_ARGS"),
    case("earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-M\0" + "8388608\0"}, "warning", "8.0 GiB", '"-m 1"'),
    case("earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m2\0"}, "ok", "2.4 GiB"),
    case("earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m\0x\0"}, "unknown", "cannot parse", "cat"),
    case("earlyoom", {"/proc/1/comm": None}, "unknown", "cannot list processes"),
    case("swap", {"/proc/meminfo": SWAPPED}, "warning", "16.0 of 16.0 GiB", "invoke restart --host spark1"),
    case("swap", {"/proc/meminfo": "MemTotal: 1 kB\n"}, "unknown", "no swap figures"),
    case("disk", {"/sandbox/disk_free": "1000000000"}, "bad", "1.0 GB free", "invoke images.prune --host spark1"),
    case("disk", {"/sandbox/disk_free": "30000000000"}, "warning", "30.0 GB free", "images.prune"),
    case("disk", {"/sandbox/disk_free": "300000000000"}, "ok", "300.0 GB free"),
    case("clock", NTP_OFF, "warning", "NTP is off", "sudo timedatectl set-ntp true"),
    case("clock", {operating_system.SYNCHRONIZED_PATH: None}, "unknown", "status unknown"),
    case("clock", {**NTP_OFF, "timedatectl": "printf 'NTP=yes\\nNTPSynchronized=no\\n'"}, "warning", "not synchronized yet"),
    case("port", {}, "ok", "a worker needs no port: the head of the cluster answers requests"),
    case("Ollama", {}, "ok", "Ollama is not running"),
    case("GPU power", {"nvidia-smi": SMI.format("97, 630, 22.4", "")}, "bad", "97 % busy at 630 MHz and 22 W", "unplug"),
    case("GPU power", {"nvidia-smi": SMI.format("97, 2405, 61.0", "")}, "ok", "97 % busy at 2405 MHz"),
    case("GPU power", {"nvidia-smi": SMI.format("3, 208, 4.0", "")}, "ok", "3 % busy"),
    case("GPU power", {"nvidia-smi": SMI.format("[N/A], [N/A], [N/A]", "")}, "unknown", "does not report utilization"),
    case("idle engine", {"nvidia-smi": SMI.format("0, 208, 9", "77"), "/proc/77/stat": STAT}, "ok", "0% of a CPU core"),
    case("GPU heat", {"nvidia-smi": "echo '61, 2405, Not Active, Not Active'"}, "ok", "61 °C, no clock cap"),
    case("GPU heat", {"nvidia-smi": "echo '61, [N/A], [N/A], [N/A]'"}, "ok", "61 °C"),
    case("GPU heat", {"nvidia-smi": "echo '[N/A], [N/A], [N/A], [N/A]'"}, "unknown", "does not report the temperature"),
    case("GPU heat", {"nvidia-smi": None}, "unknown", "does not report the temperature"),
    case("GPU heat", {"nvidia-smi": "echo '84, 1500, Not Active, Active'"},
         "warning", "84 °C, thermal throttling, no clock cap", "clock_cap_mhz: 2000 in its vars, then invoke provision --host spark1"),
    case("GPU heat", {"nvidia-smi": "echo '95, 1990, Not Active, Not Active'", **CAPPED},
         "warning", "95 °C, clock cap 2000 MHz", "a lower clock_cap_mhz than 2000"),
    case("GPU heat", {"nvidia-smi": "echo '60, 2405, Not Active, Not Active'", **CAPPED},
         "warning", "which is not in effect: the GPU runs at 2405 MHz", "sudo systemctl restart sparkwright-clock-cap.service"),
    case("idle engine", {"nvidia-smi": SMI.format("0, 208, 9", "77, VLLM::EngineCore, 104140"), "/proc/77/stat": STAT},
         "ok", "0% of a CPU core"),
    case("idle engine", {"nvidia-smi": SMI.format("95, 2400, 60", "77")}, "ok", "not idle now"),
    case("idle engine", {"nvidia-smi": SMI.format("0, 208, 9", "78")}, "unknown", "cannot read the CPU time"),
    case("shared memory", {"/dev/shm/.sandbox": None}, "unknown", "no /dev/shm"),
    case("updates", {OTA: "echo 'checking'; echo '2 updates are available'"}, "ok", "2 updates are available"),
    case("updates", {OTA: "echo 'no network' >&2; exit 3"}, "unknown", r"\(exit 3\): no network", OTA),
    case("updates", {OTA: None}, "unknown", "is not installed"),
    case("fabric", {name: text for name, text in KHO.items() if "infiniband" not in name},
         "bad", "CmaFree 9.5", "kho=off", name="RDMA memory"),
    case("fabric", {**LINK, f"{TWIN}/fw_ver": "28.44.1036\n"}, "warning", "firmware 28.44.1036", "fwupd", name="fabric p1s0f1"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "verdict", "evidence", "fix", "name"), CASES)
def test_a_check_reports_a_changed_file_or_program(
    tmp_path: Path, check: str, changes: Mapping[str, str | None], verdict: str, evidence: str, fix: str, name: str
) -> None:
    finding = find_finding(tree.make_host(tmp_path, changes), check, name)
    assert finding.verdict == verdict, finding
    assert re.search(evidence, finding.evidence), finding
    assert fix in finding.fix, finding
    assert verdict != "bad" or (finding.fix and finding.source), finding
    assert "apt upgrade" not in finding.fix and "apt-get upgrade" not in finding.fix
    assert not finding.repair or FIXES[finding.repair].manual_command("ops") == finding.fix


def test_a_healthy_host_has_no_bad_findings_and_no_warnings(tmp_path: Path) -> None:
    """Except those about a running Docker Engine, which files cannot simulate."""
    findings = run_checks(tree.make_host(tmp_path, {"/sandbox/disk_free": str(10**12)}))
    assert {item.check: item.verdict for item in findings if item.verdict != "ok"} == {
        "docker": "bad",
        "mounts": "unknown",
        "containers": "unknown",
    }
    assert {item.check for item in findings} >= set(CHECKS)


def test_a_host_without_readable_sources_is_unknown_and_never_ok(tmp_path: Path) -> None:
    bare = tree.make_host(tmp_path, dict.fromkeys([*tree.FILES, *tree.PROGRAMS], None), IntendedServer())
    ok_checks = {item.check for item in run_checks(bare) if item.verdict == "ok"}
    assert ok_checks <= {"disk", "Ollama", "memory budget"}  # without a recipe there is no budget to exceed


def test_wake_on_request_without_the_wake_service_is_a_warning(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {})
    state = host.context.state.for_server("small")
    good = VerifiedState({"name": "small", "image": "vllm@sha256:1"})
    verified_states.save_verified(state, good)
    wake = {"on_request": True, "sleep_after_s": 0, "stay_awake_s": 600, "gateways": [], "plan": {}}
    state.write(f"{restart_plans.FOLDER}/{restart_plans.state_hash(good)}", {"runtime": "1", "plan": {}, "wake": wake})
    finding = find_finding(host, "memory budget", "wake on request")
    assert (finding.verdict, finding.fix) == ("warning", "invoke health.install --host spark1")
    with (host.context.state.path / turns.LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_finding(host, "memory budget", "wake on request").verdict == "ok"


def test_a_verified_server_without_a_memory_guard_is_a_warning(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {})
    state = host.context.state
    assert "memory guard" not in tree.find_findings(host, "memory budget")
    verified_states.save_verified(state, VerifiedState({"name": "qwen35", "image": "vllm@sha256:1"}))
    object.__setattr__(host.context.machine, "sandbox", False)
    finding = find_finding(host, "memory budget", "memory guard")
    assert (finding.verdict, finding.fix) == ("warning", "invoke health.install --host spark1")
    with (state.folder(start_guard.FOLDER) / service.LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_finding(host, "memory budget", "memory guard").verdict == "ok"


@pytest.mark.parametrize(
    ("changes", "verdict", "evidence"),
    [
        ({"platforms": ("linux/amd64",)}, "bad", "linux/amd64, not linux/arm64"),
        ({"platforms": None}, "unknown", "are not in spark.lock"),
        ({"image": ""}, "unknown", "no recipe"),
        ({}, "ok", "supports linux/arm64"),
    ],
)
def test_the_platform_of_the_image(tmp_path: Path, changes: dict[str, Any], verdict: str, evidence: str) -> None:
    host = tree.make_host(tmp_path, {}, dataclasses.replace(INTENDED, **changes))
    finding = find_finding(host, "image platform")
    assert finding.verdict == verdict and evidence in finding.evidence


@pytest.mark.parametrize(
    ("changes", "evidence", "fix", "repair"),
    [
        ({"/etc/group": "docker:x:999:\n"}, "not in the group", "usermod -aG", "docker group"),
        ({}, "this login session is not", "ssh -O exit spark1", ""),
        ({"/etc/group": "root:x:0:\n"}, "no group docker", "getent", ""),
    ],
    ids=["user outside the group", "login older than the membership", "no such group"],
)
def test_the_reason_why_docker_refuses_a_login(
    tmp_path: Path, changes: dict[str, str | None], evidence: str, fix: str, repair: str
) -> None:
    host = tree.make_host(tmp_path, {"/proc/self/status": "Groups:\t1000\n", **changes})

    class Closed(type(host.context)):  # type: ignore[misc]
        def docker(self) -> Any:
            raise SocketDenied("ops has no permission on the Docker socket /var/run/docker.sock.")

    host.context.__class__ = Closed
    finding = find_finding(host, "docker")
    assert evidence in finding.evidence and fix in finding.fix
    assert finding.repair == repair


def test_earlyoom_without_a_recipe_is_unknown(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0"}, IntendedServer(name="spark1"))
    finding = find_finding(host, "earlyoom")
    assert finding.verdict == "unknown"
    assert "12.0 GiB" in finding.evidence  # earlyoom's default is a tenth of the memory


@pytest.mark.parametrize(
    ("words", "limit"), [([], 10), (["-m", "5,2"], 5), (["-r", "60", "-m3"], 3), (["-m", "?"], None)]
)
def test_earlyoom_options_are_parsed_to_a_threshold(words: list[str], limit: int | None) -> None:
    assert memory.threshold_bytes(words, 100) == limit


@pytest.mark.parametrize(
    ("off_s", "verdict"), [(0, "ok"), (-20, "ok"), (45, "warning"), (-45, "warning"), (4000, "bad")]
)
def test_the_clock_is_compared_with_the_laptop(off_s: float, verdict: str) -> None:
    assert operating_system.compare_clocks(1000.0 + off_s, 1000.0, "ops").verdict == verdict


def test_a_check_that_raises_is_unknown_and_the_others_still_run(tmp_path: Path) -> None:
    def broken(host: Host) -> Iterator[Finding]:
        raise RuntimeError("surprise")

    findings = run_checks(tree.make_host(tmp_path, {}), {"odd": broken, "swap": CHECKS["swap"]})
    assert [(item.check, item.verdict) for item in findings] == [("odd", "unknown"), ("swap", "ok")]
    assert "surprise" in findings[0].evidence


def test_no_fix_changes_packages_or_reboots() -> None:
    words = {word for fix in FIXES.values() for word in fix.argv}
    assert not words & {"apt", "apt-get", "dpkg", "snap", "reboot", "swapoff"}
    assert services.DOCKER_GROUP in FIXES["docker group"].argv


def test_the_cpu_share_of_an_engine_on_an_idle_gpu_is_measured(tmp_path: Path) -> None:
    """A real process that uses a CPU core, in the real /proc."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        host = tree.make_host(tmp_path, {"nvidia-smi": SMI.format("0, 208, 9", spinning.pid)})
        (tmp_path / "root/proc").joinpath(str(spinning.pid)).symlink_to(f"/proc/{spinning.pid}")
        before = gpu._cpu_ticks(host, str(spinning.pid))
        finding = find_finding(host, "idle engine")
        after = gpu._cpu_ticks(host, str(spinning.pid))
        assert before is not None and after is not None and after > before
        assert re.match(r"\d+% of a CPU core while the GPU is idle", finding.evidence)
        assert (finding.verdict == "warning") == (int(finding.evidence.partition("%")[0]) > 70)
    finally:
        spinning.kill()
        spinning.wait()


def test_too_little_shared_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_shm_size_bytes", lambda host: 64 * 2**20)
    finding = find_finding(tree.make_host(tmp_path, {}), "shared memory")
    assert (finding.verdict, finding.evidence[:22]) == ("warning", "0.0 of 0.1 GiB in /dev")
    assert "remount" in finding.fix


def test_leftovers_of_killed_engines_in_shared_memory_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_facts, "SHM_WARNING_BYTES", 50_000)
    finding = find_finding(tree.make_host(tmp_path, {"/dev/shm/psm_left": "x" * 100_000}), "shared memory")
    assert finding.verdict == "warning" and "remove files that no process uses" in finding.fix


DEPLOYED = IntendedServer(recipe="qwen", container="qwen35", port=8000, model_dir="/home/ops/models/qwen35-hf")
FOREIGN_UNIT = "[Service]\nExecStart=/usr/bin/docker start -a qwen35\n"
COMPOSE = "services:\n  llm:\n    image: vllm/vllm-openai\n    volumes:\n      - /home/ops/models/qwen35-hf:/m\n"


@pytest.mark.parametrize(
    ("place", "text", "evidence"),
    [
        ("home/start.sh", "#!/bin/sh\n# docker run\ndocker run -p 8000:8000 vllm/vllm-openai x\n", "~/start.sh:3 starts a server on port 8000"),
        ("home/llm/docker-compose.yml", COMPOSE, "~/llm/docker-compose.yml:5 starts a server with this model"),
        ("root/etc/systemd/system/llm.service", FOREIGN_UNIT, "/etc/systemd/system/llm.service:2 starts a server under this name"),
        ("root/etc/cron.d/llm", "@reboot ops vllm serve /x --port 8000\n", "/etc/cron.d/llm:1 starts a server on port 8000"),
    ],
)  # fmt: skip
def test_another_file_that_starts_the_recipes_server_is_named_with_its_line(
    tmp_path: Path, place: str, text: str, evidence: str
) -> None:
    host = tree.make_host(tmp_path, {}, DEPLOYED)
    assert find_finding(host, "other starts").verdict == "ok"
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(text)
    finding = find_finding(host, "other starts")
    assert finding.verdict == "warning" and finding.evidence.startswith(evidence)
    assert "its settings may differ from the recipe's" in finding.evidence


def test_files_that_start_other_servers_are_ignored_and_pipes_are_not_read(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {}, DEPLOYED)
    home = tmp_path / "home"
    os.mkfifo(home / "pipe.sh")
    (home / "note.sh").write_text("# docker run -p 8000:8000\necho 8000:8000\n")
    (home / "other.sh").write_text("docker run -p 18000:8000 --name qwen35-old x\n")
    (home / "ours.sh").write_text("# Written by sparkwright\ndocker run --name qwen35 x\n")
    assert find_finding(host, "other starts").verdict == "ok"
    without_recipe = tree.make_host(tmp_path / "bare", {}, IntendedServer())
    assert find_finding(without_recipe, "other starts").verdict == "unknown"
