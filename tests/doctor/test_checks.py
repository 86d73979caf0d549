"""Each check on a host made of files: its finding if all is well, if one thing is wrong, and if it can't read its source."""

import dataclasses
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkwright.doctor import known_facts
from sparkwright.doctor.checks import CHECKS, gpu, memory, operating_system, run_checks, services
from sparkwright.doctor.host import FIXES, Finding, Host, IntendedServer
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.records import restart_plans, turns, verified_states
from sparkwright.host.runs.context import SocketDenied
from sparkwright.host.settings_table import CLOCK, CLOCK_UNIT_TEXT, PATHS
from tests.doctor import link_tree, tree
from tests.doctor.tree import GIB, INTENDED, MEMINFO, RELEASE, SMI

ROCE = {
    "/proc/sys/kernel/osrelease": "6.17.0-1008-nvidia\n",
    "/sys/class/infiniband/rocep1s0f0/ports/1/state": "4: ACTIVE\n",
}
MODULE = "NVRM version: NVIDIA UNIX {} Module for aarch64  {}  Release Build\n"
LOADED, FIRMWARE = "/proc/driver/nvidia/version", "/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin"
SMI_590 = {
    "nvidia-smi": "echo 'NVIDIA GB10, 590.44.01'",
    FIRMWARE: None,
    LOADED: MODULE.format("Open Kernel", "590.44.01"),
}
MISMATCH = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
NTP_OFF = {operating_system.SYNCHRONIZED_PATH: None, "timedatectl": "printf 'NTP=no\\nNTPSynchronized=no\\n'"}
EARLYOOM = {"/proc/77/comm": "earlyoom\n"}
AVAHI = {"/proc/88/comm": "avahi-daemon\n", "/proc/88/cmdline": "avahi-daemon: running [spark-sandbox-17.local]\0"}
TOO_SMALL = MEMINFO.format(total=int(112.5 * GIB) // 1024, swap_free=16777216)
SWAPPED = MEMINFO.format(total=int(119.7 * GIB) // 1024, swap_free=1024)
REFRESH = "nvidia-ctk", 'echo "NVIDIA Container Toolkit CLI version 1.18.1"'
OLD_CDI = "kind: nvidia.com/gpu\n# libcuda.so.580.82.09\n"

LINK: dict[str, str | None] = {**link_tree.host_files(1), **link_tree.host_programs(1)}
TWIN = "/sys/class/infiniband/roceP2p1s0f1/ports/1"
KHO = {
    **LINK,
    **link_tree.host_files(1, kernel="7.0.0-1019-nvidia"),
    "/proc/meminfo": link_tree.MEMINFO.replace("30000", "9960000"),
}

OTA = "nvidia-spark-ota-check"
CAPPED = {PATHS[CLOCK]: CLOCK_UNIT_TEXT.format(2000)}
STAT = "77 (VLLM::Engine Core) S 1 77 77 0 -1 4194560 1 0 0 0 4300 200 0 0 20 0 90 0 100 0 0\n"

#: check, finding, what is changed, its verdict, what the evidence says, what the fix says
CASES: list[tuple[str, str, dict[str, str | None], str, str, str]] = [
    ("DGX OS", "DGX OS", {"/etc/dgx-release": None}, "warning", "without /etc/dgx-release", ""),
    ("DGX OS", "DGX OS", {"/etc/dgx-release": None, "nvidia-smi": None}, "unknown", "is this a DGX Spark", ""),
    ("DGX OS", "DGX OS", {"/etc/dgx-release": RELEASE.format("6.3.0")}, "bad", "older than DGX OS 7", "Dashboard"),
    ("DGX OS", "DGX OS", {"/etc/dgx-release": RELEASE.format("7.9.0")}, "unknown", "newer than 7.5.0", ""),
    ("DGX OS", "DGX OS", {"/etc/dgx-release": 'DGX_NAME="x"\n'}, "unknown", "no version in", "cat"),
    ("DGX OS", "memory", {"/proc/meminfo": TOO_SMALL}, "warning", "7.2 GiB less than on other GB10", "Dashboard"),
    ("fabric", "fabric", {"/etc/hostname": "spark1\n"}, "ok", "no link is up", ""),
    ("fabric", "fabric p1s0f1", LINK, "ok", "enp1s0f1np1 and enP2p1s0f1np1: 200 Gb/s, MTU 9000, 192.168.100.1/24", ""),
    ("fabric", "fabric p1s0f1", {**LINK, f"{TWIN}/state": "1: DOWN\n"}, "warning", "the other half is up", "enP2p1s0f1np1 up"),
    ("fabric", "fabric p1s0f1", {**LINK, f"{TWIN}/rate": "100 Gb/sec (4X EDR)\n"}, "warning", "100 Gb/s", ""),
    ("fabric", "fabric p1s0f1", {**LINK, "/sys/class/net/enp1s0f1np1/mtu": "1500\n"}, "warning", "MTU 1500", "mtu 9000"),
    ("fabric", "fabric p1s0f1", {**LINK, "ip": "exit 1"}, "warning", "has no IPv4 address", ""),
    ("fabric", "fabric p1s0f1", {**LINK, f"{TWIN}/gid_attrs/types/3": "IB/RoCE v1\n"}, "bad", "no RoCE v2 GID", "reboot"),
    ("fabric", "RDMA memory", LINK, "ok", "CmaTotal 0.03 GiB", ""),
    ("fabric", "RDMA memory", KHO, "bad", "7.0.0-1019-nvidia: CmaFree 9.5 GiB of CmaTotal 0.03 GiB", "kho=off"),
    ("fabric", "RDMA memory", {**KHO, "/proc/cmdline": "quiet kho=off\n"}, "ok", "7.0.0-1019-nvidia", ""),
    ("driver", "driver", SMI_590, "warning", "CUDA graph", ""),
    ("driver", "driver", {"nvidia-smi": "echo 'NVIDIA GB10, 701.1'"}, "unknown", "not a branch known", ""),
    ("driver", "driver", {"nvidia-smi": MISMATCH}, "bad", "version mismatch", "sudo reboot"),
    ("driver", "driver", {"nvidia-smi": None}, "bad", "nvidia-smi is not installed", ""),
    ("driver", "driver", {"nvidia-smi": None, LOADED: None}, "unknown", "nvidia-smi is not installed", ""),
    ("driver", "driver", {LOADED: MODULE.format("Kernel", "580.95.05")}, "bad", "open kernel modules", ""),
    ("driver", "firmware", {LOADED: MODULE.format("Open Kernel", "580.82.09")}, "bad", "580.82.09 is loaded", "reboot"),
    (
        *("driver", "firmware", {FIRMWARE: None, "/lib/firmware/nvidia/580.126.09/gsp_ga10x.bin": ""}, "bad"),
        *("driver 580.95.05, GSP firmware 580.126.09", "Dashboard"),
    ),
    ("driver", "firmware", {FIRMWARE: None}, "unknown", "no driver firmware", ""),
    ("kernel", "kernel", ROCE, "warning", "RoCE .* rocep1s0f0 is up", ""),
    ("kernel", "kernel", {"/proc/sys/kernel/osrelease": "6.17.0-1008-nvidia\n"}, "ok", "6.17", ""),
    ("kernel", "kernel", {"/proc/sys/kernel/osrelease": "7.0.0-1019-nvidia\n"}, "ok", "7.0.0-1019", ""),
    ("kernel", "kernel", {"/proc/sys/kernel/osrelease": "5.4.0\n"}, "unknown", "5.4.0", ""),
    ("kernel", "kernel", {"/proc/sys/kernel/osrelease": None}, "unknown", "cannot read", ""),
    (
        *("kernel", "reboot", {"/run/reboot-required": "", "/run/reboot-required.pkgs": "linux-image-x\n"}, "warning"),
        *("reboot required: linux-image-x", "sudo reboot"),
    ),
    ("docker", "docker", {}, "bad", "no answer from the Docker Engine", "sudo systemctl start docker"),
    ("docker", "docker at boot", {"systemctl": "echo disabled; exit 1"}, "bad", "after a reboot", "enable --now"),
    ("docker", "docker at boot", {"systemctl": None}, "unknown", "unknown whether", ""),
    (
        "container toolkit",
        "container toolkit",
        {"/usr/bin/nvidia-container-runtime-hook": None},
        "bad",
        "not configured as a Docker runtime",
        "ctk",
    ),
    (
        *("container toolkit", "container toolkit"),
        *({"/usr/bin/nvidia-container-runtime-hook": None, "nvidia-ctk": None}, "bad", "neither", "apt install"),
    ),
    ("container toolkit", "CDI", {"/etc/cdi/nvidia.yaml": OLD_CDI}, "bad", "580.82.09, but 580.95.05", "cdi generate"),
    (
        *("container toolkit", "CDI"),
        {REFRESH[0]: REFRESH[1], "systemctl": "exit 0", "/etc/cdi/nvidia.yaml": None, "/run/cdi/nvidia.yaml": OLD_CDI},
        *("bad", "580.82.09, but 580.95.05", "restart nvidia-cdi-refresh.service"),
    ),
    ("container toolkit", "CDI", {"/etc/cdi/mine.yaml": OLD_CDI}, "bad", "580.82.09", "--output=/etc/cdi/mine.yaml"),
    ("container toolkit", "CDI", {"/etc/cdi/nvidia.yaml": None}, "ok", "no CDI specification", ""),
    ("container toolkit", "CDI", {"/etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu\n"}, "unknown", "lists no driver libraries", ""),
    ("logout", "logout", {"/var/lib/systemd/linger/ops": None}, "warning", "RemoveIPC=yes by default", "enable-linger ops"),
    (
        *("logout", "logout"),
        {"/var/lib/systemd/linger/ops": None, "/etc/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=no\n"},
        *("warning", "RemoveIPC=no in /etc/systemd/logind.conf.d/50.conf; linger is off for ops", "enable-linger ops"),
    ),
    (
        "logout",
        "logout",
        {"/etc/systemd/logind.conf": None, "/run/systemd/timesync/synchronized": None},
        "unknown",
        "systemd is not running",
        "",
    ),
    ("locale", "locale", {"/etc/default/locale": 'LANG="de_DE.UTF-8"\n'}, "warning", "de_DE.UTF-8, which is not", "LANG=C.UTF-8"),
    ("locale", "locale", {"/etc/default/locale": None}, "ok", "no locale is set", ""),
    ("locale", "locale", {"locale": None}, "unknown", "does not list the locales", ""),
    ("names", "names", {"getent": "exit 2"}, "warning", "does not resolve", "tee -a /etc/hosts"),
    ("names", "names", {"getent": None}, "unknown", "unknown whether", ""),
    ("names", "avahi", AVAHI, "warning", "spark-sandbox-17.local instead of spark-sandbox.local", "allow-interfaces=enP7s7"),
    ("names", "DNS", {"getent": "exit 2"}, "bad", "cannot resolve hub.test", "resolvectl"),
    (
        "earlyoom",
        "earlyoom",
        {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m\0" + "20\0"},
        "bad",
        "leaves at most 18.0 GiB",
        "EARLYOOM_ARGS",
    ),
    ("earlyoom", "earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-M\0" + "8388608\0"}, "warning", "8.0 GiB", '"-m 1"'),
    ("earlyoom", "earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m2\0"}, "ok", "2.4 GiB", ""),
    ("earlyoom", "earlyoom", {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0-m\0x\0"}, "unknown", "cannot parse", "cat"),
    ("earlyoom", "earlyoom", {"/proc/1/comm": None}, "unknown", "cannot list processes", ""),
    ("swap", "swap", {"/proc/meminfo": SWAPPED}, "warning", "16.0 of 16.0 GiB", "invoke restart --host spark1"),
    ("swap", "swap", {"/proc/meminfo": "MemTotal: 1 kB\n"}, "unknown", "no swap figures", ""),
    ("disk", "disk", {"/sandbox/disk_free": "1000000000"}, "bad", "1.0 GB free", "invoke images.prune --host spark1"),
    ("disk", "disk", {"/sandbox/disk_free": "30000000000"}, "warning", "30.0 GB free", "images.prune"),
    ("disk", "disk", {"/sandbox/disk_free": "300000000000"}, "ok", "300.0 GB free", ""),
    ("clock", "clock", NTP_OFF, "warning", "NTP is off", "sudo timedatectl set-ntp true"),
    ("clock", "clock", {operating_system.SYNCHRONIZED_PATH: None}, "unknown", "status unknown", ""),
    (
        "clock",
        "clock",
        {**NTP_OFF, "timedatectl": "printf 'NTP=yes\\nNTPSynchronized=no\\n'"},
        "warning",
        "not synchronized yet",
        "",
    ),
    ("port", "port", {}, "ok", "a worker needs no port: the head of the cluster answers requests", ""),
    ("Ollama", "Ollama", {}, "ok", "Ollama is not running", ""),
    ("GPU power", "GPU power", {"nvidia-smi": SMI.format("97, 630, 22.4", "")}, "bad", "97 % busy at 630 MHz and 22 W", "unplug"),
    ("GPU power", "GPU power", {"nvidia-smi": SMI.format("97, 2405, 61.0", "")}, "ok", "97 % busy at 2405 MHz", ""),
    ("GPU power", "GPU power", {"nvidia-smi": SMI.format("3, 208, 4.0", "")}, "ok", "3 % busy", ""),
    ("GPU power", "GPU power", {"nvidia-smi": SMI.format("[N/A], [N/A], [N/A]", "")}, "unknown", "does not report utilization", ""),
    (
        "idle engine",
        "idle engine",
        {"nvidia-smi": SMI.format("0, 208, 9", "77"), "/proc/77/stat": STAT},
        "ok",
        "0% of a CPU core",
        "",
    ),
    ("GPU heat", "GPU heat", {"nvidia-smi": "echo '61, 2405, Not Active, Not Active'"}, "ok", "61 °C, no clock cap", ""),
    ("GPU heat", "GPU heat", {"nvidia-smi": "echo '61, [N/A], [N/A], [N/A]'"}, "ok", "61 °C", ""),
    ("GPU heat", "GPU heat", {"nvidia-smi": "echo '[N/A], [N/A], [N/A], [N/A]'"}, "unknown", "does not report the temperature", ""),
    ("GPU heat", "GPU heat", {"nvidia-smi": None}, "unknown", "does not report the temperature", ""),
    (
        "GPU heat",
        "GPU heat",
        {"nvidia-smi": "echo '84, 1500, Not Active, Active'"},
        "warning",
        "84 °C, thermal throttling, no clock cap",
        "clock_cap_mhz: 2000 in its vars, then invoke provision --host spark1",
    ),
    (
        "GPU heat",
        "GPU heat",
        {"nvidia-smi": "echo '95, 1990, Not Active, Not Active'", **CAPPED},
        "warning",
        "95 °C, clock cap 2000 MHz",
        "a lower clock_cap_mhz than 2000",
    ),
    (
        "GPU heat",
        "GPU heat",
        {"nvidia-smi": "echo '60, 2405, Not Active, Not Active'", **CAPPED},
        "warning",
        "which is not in effect: the GPU runs at 2405 MHz",
        "sudo systemctl restart sparkwright-clock-cap.service",
    ),
    (
        "idle engine",
        "idle engine",
        {"nvidia-smi": SMI.format("0, 208, 9", "77, VLLM::EngineCore, 104140"), "/proc/77/stat": STAT},
        "ok",
        "0% of a CPU core",
        "",
    ),
    ("idle engine", "idle engine", {"nvidia-smi": SMI.format("95, 2400, 60", "77")}, "ok", "not idle now", ""),
    ("idle engine", "idle engine", {"nvidia-smi": SMI.format("0, 208, 9", "78")}, "unknown", "cannot read the CPU time", ""),
    ("shared memory", "shared memory", {"/dev/shm/.sandbox": None}, "unknown", "no /dev/shm", ""),
    ("updates", "updates", {OTA: "echo 'checking'; echo '2 updates are available'"}, "ok", "2 updates are available", ""),
    ("updates", "updates", {OTA: "echo 'no network' >&2; exit 3"}, "unknown", r"\(exit 3\): no network", OTA),
    ("updates", "updates", {OTA: None}, "unknown", "is not installed", ""),
    (
        "fabric",
        "RDMA memory",
        {name: text for name, text in KHO.items() if "infiniband" not in name},
        "bad",
        "CmaFree 9.5",
        "kho=off",
    ),
    (
        "fabric",
        "fabric p1s0f1",
        {**LINK, "/sys/class/infiniband/roceP2p1s0f1/fw_ver": "28.44.1036\n"},
        "warning",
        "firmware 28.44.1036",
        "fwupd",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "name", "changes", "verdict", "evidence", "fix"), CASES)
def test_one_thing_that_is_wrong_is_seen(
    tmp_path: Path, check: str, name: str, changes: dict[str, str | None], verdict: str, evidence: str, fix: str
) -> None:
    findings = tree.find_findings(tree.make_host(tmp_path, changes), check)[name]
    assert findings.verdict == verdict, findings
    assert re.search(evidence, findings.evidence), findings
    assert fix in findings.fix, findings


def test_a_healthy_host_has_nothing_bad_and_nothing_to_warn_of(tmp_path: Path) -> None:
    """Only what a folder can't provide is missing: an engine that answers."""
    findings = run_checks(tree.make_host(tmp_path, {"/sandbox/disk_free": str(10**12)}))
    assert {item.check: item.verdict for item in findings if item.verdict != "ok"} == {
        "docker": "bad",
        "mounts": "unknown",
        "containers": "unknown",
    }
    assert {item.check for item in findings} >= set(CHECKS)


def test_a_host_that_can_be_asked_nothing_is_unknown_and_never_ok(tmp_path: Path) -> None:
    bare = tree.make_host(tmp_path, dict.fromkeys([*tree.FILES, *tree.PROGRAMS], None), IntendedServer())
    verdicts = {item.check: item.verdict for item in run_checks(bare)}
    assert {name for name, verdict in verdicts.items() if verdict == "ok"} <= {"disk", "Ollama", "memory budget"}, (
        "no recipe, no budget"
    )


def test_a_server_that_requests_may_wake_without_the_service_is_a_warning(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {})
    state = host.context.state.for_server("small")
    good = {"spec": {"name": "small", "image": "vllm@sha256:1"}, "model": {}, "serve": {}}
    verified_states.save_verified(state, good)
    wake = {"on_request": True, "sleep_after_s": 0, "stay_awake_s": 600, "gateways": [], "plan": {}}
    state.write(f"{restart_plans.FOLDER}/{restart_plans.state_hash(good)}", {"runtime": "1", "plan": {}, "wake": wake})
    findings = tree.find_findings(host, "memory budget")["wake on request"]
    assert (findings.verdict, findings.fix) == ("warning", f"invoke health.install --host {host.server.name or 'HOST'}")
    with (host.context.state.path / turns.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tree.find_findings(host, "memory budget")["wake on request"].verdict == "ok"


def test_a_verified_server_without_the_guard_of_the_memory_is_a_warning(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {})
    state = host.context.state
    assert "memory guard" not in tree.find_findings(host, "memory budget")
    verified_states.save_verified(
        state, {"spec": {"name": "qwen35", "image": "vllm@sha256:1"}, "model": {}, "serve": {}}
    )
    object.__setattr__(host.context.machine, "sandbox", False)
    findings = tree.find_findings(host, "memory budget")["memory guard"]
    assert (findings.verdict, findings.fix) == ("warning", f"invoke health.install --host {host.server.name or 'HOST'}")
    folder = state.folder(start_guard.FOLDER)
    with (folder / service_guard.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tree.find_findings(host, "memory budget")["memory guard"].verdict == "ok"


@pytest.mark.parametrize(
    ("changes", "verdict", "evidence"),
    [
        ({"platforms": ("linux/amd64",)}, "bad", "linux/amd64, not linux/arm64"),
        ({"platforms": None}, "unknown", "are not in spark.lock"),
        ({"image": ""}, "unknown", "no recipe"),
        ({}, "ok", "has linux/arm64"),
    ],
)
def test_the_platform_of_the_image(tmp_path: Path, changes: dict[str, Any], verdict: str, evidence: str) -> None:
    findings = tree.find_findings(
        tree.make_host(tmp_path, {}, dataclasses.replace(INTENDED, **changes)), "image platform"
    )
    assert findings["image platform"].verdict == verdict
    assert evidence in findings["image platform"].evidence


@pytest.mark.parametrize(
    ("changes", "evidence", "fix", "repair"),
    [
        (
            {"/etc/group": "docker:x:999:\n", "/proc/self/status": "Groups:\t1000\n"},
            "not in the group",
            "usermod -aG",
            "docker group",
        ),
        ({"/proc/self/status": "Groups:\t1000\n"}, "this login session is not", "ssh -O exit spark1", ""),
        ({"/etc/group": "root:x:0:\n", "/proc/self/status": "Groups:\t1000\n"}, "no group docker", "getent", ""),
    ],
)
def test_why_docker_refuses_a_login(
    tmp_path: Path, changes: dict[str, str | None], evidence: str, fix: str, repair: str
) -> None:
    """A user outside the group, one whose login is older than the membership, and a host without the group."""
    host = tree.make_host(tmp_path, changes)

    class Closed(type(host.context)):  # type: ignore[misc]
        def docker(self) -> Any:
            raise SocketDenied("ops has no permission on the Docker socket /var/run/docker.sock.")

    host.context.__class__ = Closed
    findings = tree.find_findings(host, "docker")["docker"]
    assert evidence in findings.evidence
    assert fix in findings.fix
    assert findings.repair == repair


def test_earlyoom_without_a_recipe_is_unknown(tmp_path: Path) -> None:
    value = tree.make_host(tmp_path, {**EARLYOOM, "/proc/77/cmdline": "earlyoom\0"}, IntendedServer(name="spark1"))
    findings = tree.find_findings(value, "earlyoom")["earlyoom"]
    assert findings.verdict == "unknown"
    assert "12.0 GiB" in findings.evidence  # earlyoom's default is a tenth


@pytest.mark.parametrize(
    ("words", "limit"), [([], 10), (["-m", "5,2"], 5), (["-r", "60", "-m3"], 3), (["-m", "?"], None)]
)
def test_the_options_of_earlyoom(words: list[str], limit: int | None) -> None:
    assert memory.threshold_bytes(words, 100) == limit


@pytest.mark.parametrize(
    ("off_s", "verdict"), [(0, "ok"), (-20, "ok"), (45, "warning"), (-45, "warning"), (4000, "bad")]
)
def test_the_clock_beside_the_laptop(off_s: float, verdict: str) -> None:
    finding = operating_system.compare_clocks(1000.0 + off_s, 1000.0, "ops")
    assert finding.verdict == verdict


def test_a_check_that_breaks_is_unknown_and_hides_no_other(tmp_path: Path) -> None:
    def broken(host: Host) -> list[Finding]:
        raise RuntimeError("surprise")

    findings = run_checks(tree.make_host(tmp_path, {}), {"odd": broken, "swap": CHECKS["swap"]})
    assert [(item.check, item.verdict) for item in findings] == [("odd", "unknown"), ("swap", "ok")]
    assert "surprise" in findings[0].evidence


def test_whatever_is_bad_names_a_command_or_a_place_and_a_source(tmp_path: Path) -> None:
    for n, (check, name, changes, verdict, _, _) in enumerate(CASES):
        findings = tree.find_findings(tree.make_host(tmp_path / str(n), changes), check)[name]
        if verdict == "bad":
            assert findings.fix and findings.source, findings
        assert "apt upgrade" not in findings.fix
        assert "apt-get upgrade" not in findings.fix
        assert not findings.repair or FIXES[findings.repair].manual_command("ops") == findings.fix


def test_no_mend_touches_packages() -> None:
    words = {word for fix in FIXES.values() for word in fix.argv}
    assert not words & {"apt", "apt-get", "dpkg", "snap", "reboot", "swapoff"}
    assert services.DOCKER_GROUP in FIXES["docker group"].argv


def test_a_process_that_polls_on_an_idle_gpu_is_seen_and_its_share_of_a_core_told(tmp_path: Path) -> None:
    """A real process that spins, found in the real /proc."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        value = tree.make_host(tmp_path, {"nvidia-smi": SMI.format("0, 208, 9", spinning.pid)})
        (tmp_path / "root/proc").joinpath(str(spinning.pid)).symlink_to(f"/proc/{spinning.pid}")
        ticks = gpu._cpu_ticks(value, str(spinning.pid))
        assert ticks is not None
        findings = tree.find_findings(value, "idle engine")["idle engine"]
        later = gpu._cpu_ticks(value, str(spinning.pid))
        assert later is not None
        assert later > ticks
        assert re.match(r"\d+% of a CPU core while the GPU is idle", findings.evidence)
        assert (findings.verdict == "warning") == (int(findings.evidence.partition("%")[0]) > 70)
    finally:
        spinning.kill()
        spinning.wait()


def test_a_shared_memory_that_is_too_small_for_an_engine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_shm_size_bytes", lambda host: 64 * 2**20)
    findings = tree.find_findings(tree.make_host(tmp_path, {}), "shared memory")["shared memory"]
    assert (findings.verdict, findings.evidence[:22]) == ("warning", "0.0 of 0.1 GiB in /dev")
    assert "remount" in findings.fix


def test_what_killed_engines_left_in_shared_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = tree.make_host(tmp_path, {"/dev/shm/psm_left": "x" * 100_000})
    monkeypatch.setattr(known_facts, "SHM_WARNING_BYTES", 50_000)
    findings = tree.find_findings(value, "shared memory")["shared memory"]
    assert findings.verdict == "warning"
    assert "remove files that no process uses" in findings.fix


SERVES = IntendedServer(recipe="qwen", container="qwen35", port=8000, model_dir="/home/ops/models/qwen35-hf")
UNIT_OF_OTHERS = "[Service]\nExecStart=/usr/bin/docker start -a qwen35\n"
COMPOSE = "services:\n  llm:\n    image: vllm/vllm-openai\n    volumes:\n      - /home/ops/models/qwen35-hf:/m\n"


@pytest.mark.parametrize(
    ("place", "text", "evidence"),
    [
        ("home/start.sh", "#!/bin/sh\n# docker run\ndocker run -p 8000:8000 vllm/vllm-openai x\n", "~/start.sh:3 starts a server on port 8000"),
        ("home/llm/docker-compose.yml", COMPOSE, "~/llm/docker-compose.yml:5 starts a server with this model"),
        ("root/etc/systemd/system/llm.service", UNIT_OF_OTHERS, "/etc/systemd/system/llm.service:2 starts a server under this name"),
        ("root/etc/cron.d/llm", "@reboot ops vllm serve /x --port 8000\n", "/etc/cron.d/llm:1 starts a server on port 8000"),
    ],
)  # fmt: skip
def test_another_start_of_the_recipes_server_is_told_with_its_line(
    tmp_path: Path, place: str, text: str, evidence: str
) -> None:
    host = tree.make_host(tmp_path, {}, SERVES)
    assert tree.find_findings(host, "other starts")["other starts"].verdict == "ok"
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(text)
    findings = tree.find_findings(host, "other starts")["other starts"]
    assert findings.verdict == "warning" and findings.evidence.startswith(evidence)
    assert "its settings may differ from the recipe's" in findings.evidence


def test_files_that_start_no_such_server_are_none_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    host = tree.make_host(tmp_path, {}, SERVES)
    home = tmp_path / "home"
    os.mkfifo(home / "pipe.sh")
    (home / "note.sh").write_text("# docker run -p 8000:8000\necho 8000:8000\n")
    (home / "other.sh").write_text("docker run -p 18000:8000 --name qwen35-old x\n")
    (home / "ours.sh").write_text("# Written by sparkwright\ndocker run --name qwen35 x\n")
    assert tree.find_findings(host, "other starts")["other starts"].verdict == "ok"
    assert (
        tree.find_findings(tree.make_host(tmp_path / "bare", {}, IntendedServer()), "other starts")[
            "other starts"
        ].verdict
        == "unknown"
    )
