"""Known facts about DGX Sparks and their software, with sources, as of November 2026."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class KnownFact:
    #: a clause for the evidence; empty if there is nothing to warn about
    text: str
    source: str


NVCHECKUP = "NVCheckup README"
WIKI = "DGX Spark community wiki"
PLAYBOOKS = "NVIDIA dgx-spark-playbooks"

#: releases of DGX OS by DGX_OTA_VERSION or DGX_SWBUILD_VERSION, newest last
RELEASES: dict[str, KnownFact] = {
    "7.2.3": KnownFact("", PLAYBOOKS),
    "7.3.1": KnownFact("", PLAYBOOKS),
    "7.5.0": KnownFact("with this release, some hosts boot with 7.2 GiB less memory", "NVIDIA developer forum 383222"),
}
RELEASE_MAJOR = 7

#: MemTotal of a GB10 (119.7 GiB in 2025, 121.7 in 2026); if it is clearly less, the firmware has reserved the rest
GB10_MEMORY_BYTES = int(119.7 * GIB)
MEMORY_SLACK_BYTES = 3 * GIB
MEMORY_SOURCE = "NVCheckup README; NVIDIA developer forum 383222"

#: driver branches for which there are reports
DRIVERS: dict[int, KnownFact] = {
    580: KnownFact("", NVCHECKUP),
    590: KnownFact("CUDA graph bugs are reported for this branch", NVCHECKUP),
}
DRIVER_PAIR = KnownFact("an `apt upgrade` can leave driver and GSP firmware mismatched", NVCHECKUP)
OPEN_MODULE = KnownFact("a GB10 needs the open kernel modules", NVCHECKUP)

#: kernels by major.minor version, with reports about the fast network
KERNELS: dict[str, KnownFact] = {
    "6.11": KnownFact("", WIKI),
    "6.14": KnownFact("", WIKI),
    "6.17": KnownFact("RoCE at only 13 to 16 Gb/s is reported for this kernel", WIKI),
    "7.0": KnownFact("", "NVIDIA NV-Kernels PR 590, 591"),  # the check of RDMA memory covers its effect
}

#: rate of a ConnectX-7 port, which two PCI functions share
LINK_GBPS = 200
JUMBO_MTU = 9000
BOTH_TWINS = KnownFact(
    "one half of a port carries about half the rate (98 instead of 161 Gb/s)", "tonyd2wild, 2x DGX Spark, PR 35"
)
SLOW_LINK = KnownFact(
    "a cluster decodes about 2 % more slowly, and prefills more slowly still", "NVIDIA developer forum 373146"
)
JUMBO = KnownFact("NCCL reaches 19 to 21 instead of 24 GB/s", "NVIDIA dgx-spark-playbooks issues 25, 102")
PCI_WIDTH = KnownFact("a port of a Spark has four lanes", "NVIDIA developer forum 367853")
TWIN_ADDRESSES = KnownFact("each half of a port needs an address in a separate subnet", PLAYBOOKS)
ROCE_GID = KnownFact("the ranks of a cluster cannot reach this address by RDMA", "sparkrun issue 327")
CMA = KnownFact(
    "this kernel reserves CMA, and RDMA memory cannot be registered (ibv_reg_mr: Cannot allocate memory)",
    "NVIDIA NV-Kernels PR 590; NVIDIA developer forum 383023",
)
MIN_EXCESS_CMA_BYTES = 4 * GIB
NIC_FIRMWARE = KnownFact("an update reached only one half of the port", "NVIDIA developer forum 367853")

LOW_POWER = KnownFact(
    "stuck in a low-power state, without an error",
    "eugr/spark-vllm-docker issue 260; model-serving-minefield PR 55; MiaAI-Lab DSpark-2x issue 146",
)

#: tolerance for a clock above its cap, because clocks change in steps of 15 MHz and are read with a delay
CAP_SLACK_MHZ = 50.0
HEAT = KnownFact(
    "a hot GPU lowers its clock, which slows the server", "MiaAI-Lab DSpark-2x issue 146; rwlove/home-ops PR 13053"
)

IDLE_SPIN = KnownFact(
    "the engine polls, and the CPU's heat warms the GPU",
    "vLLM PR 51950; hasso5703/dgx-spark-qwen38 PR 4; MiaAI-Lab DSpark-2x issue 79",
)
IDLE_PERCENT, SPIN_SHARE = 5.0, 0.7

BUDGET = KnownFact("the engine also uses memory outside the GPU's share", "llamastash PR 81; vllm #46307, #56824")
SHM = KnownFact("files there use memory until they are removed", "tmpfs(5); tonyd2wild, 2x DGX Spark, issue 31")
SHM_WARNING_BYTES = 2 * GIB
#: minimum that NGC's containers need; Docker's default is 64 MiB
MIN_SHM_BYTES = GIB
SHM_SMALL = KnownFact(
    "the engine's processes exchange data there (`ipc: host`)",
    "the start-up note of NVIDIA's NGC containers; vLLM's documentation",
)

OTA_SOURCE = f"{PLAYBOOKS}; NVCheckup README"

DOCKER_GROUP = KnownFact("by default the user is not in the docker group", PLAYBOOKS)
LIVE_LOGIN = KnownFact("a login session keeps its groups, and so does a shared ssh connection", PLAYBOOKS)
TOOLKIT = KnownFact("nvidia-container-toolkit is preinstalled", PLAYBOOKS)
CDI = KnownFact("containers get the driver libraries that the specification lists", "NVIDIA Container Toolkit, CDI")
#: first version of the toolkit with a service that updates the specification
FIRST_TOOLKIT_WITH_CDI_REFRESH = (1, 18)
CDI_REFRESH_SERVICE = "nvidia-cdi-refresh.service"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")

REMOVE_IPC = KnownFact("a user's shared memory is removed at the last logout", "logind.conf(5), RemoveIPC=")
FIRST_ORDINARY_UID = 1000

LOCALE = KnownFact("programs warn and fall back to C", "locale(7); sparkwright itself runs programs with LC_ALL=C")
AVAHI = KnownFact("an avahi bug increments the name (-2, -3 ... -528)", NVCHECKUP)
OWN_NAME = KnownFact("sudo and inference engines resolve the hostname", "hostname(7), sudo(8)")

#: default of earlyoom(1), which sends SIGTERM when memory AND swap are below this share, and SIGKILL below half of it
EARLYOOM_DEFAULT_PERCENT = 10.0
EARLYOOM = KnownFact(
    "it selects by resident memory, only 2 GiB for an engine on a GB10, so it kills a process that frees little, or the server",
    "earlyoom(1); SGLang cookbook for DGX Spark; vLLM #54200",
)

SWAP = KnownFact("weights in swap slow decoding down; never run swapoff with a model loaded", WIKI)

DISK_NEED = "a vLLM image takes about 20 GB, and the same again while unpacking"

CLOCK = KnownFact("with a wrong clock, certificates and tokens are rejected", "timedatectl(1)")

OLLAMA = KnownFact("Ollama shares memory with the engine", "NVIDIA dgx-spark-playbooks; NemoClaw #2638")
OLLAMA_OPEN = KnownFact("Ollama has no authentication", "Ollama's FAQ, OLLAMA_HOST")
OTHER_START = KnownFact("its settings may differ from the recipe's", "model-serving-minefield 53, 104")
PLATFORM = KnownFact("an image for another platform fails with `exec format error`", "ComfyUI-Nvidia-Docker #96")
