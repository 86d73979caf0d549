"""Rules about splitting a model on a single host."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.parallel.flags import MEMBERS, PIPELINE, TENSOR
from sparkwright.engines.vllm.rules.rule import Case, Example, rule

GID_INDEX = "NCCL_IB_GID_INDEX"


@rule(
    "parallel",
    sources=(
        "vLLM 0.17.1 and newer: World size (2) is larger than the number of available GPUs (1) in this node",
        "kubis.ai, gpt-oss-120b MXFP4 and Nemotron-3-Super-120B NVFP4 on one and two DGX Sparks (others' figures, not ours)",
        "StorageReview on two DGX Sparks: pipeline parallelism gives more than tensor parallelism for many streams",
        "vLLM's documentation of parallelism and scaling; docs/parallel.md",
    ),
    example=Example({TENSOR: 2}),
)
def without_a_cluster(case: Case) -> Iterator[Finding]:
    """A GB10 has one GPU: a model is split over several hosts by `parallel`, never by a flag.
    `parallel: {tensor: 2}` splits every layer over two hosts that form a cluster (`cluster` in hosts/groups.yml). It makes a single stream
    faster, by 1.2 to 1.4 times and not by 2, for every layer waits twice for the other host. Two Sparks with gpt-oss-120b gave 69.0 tok/s for
    one stream (57.5 from one Spark), 231 in total for 8 streams (154), 472 for 32 (319). It needs attention heads that divide by the
    number of hosts.

    `parallel: {pipeline: 2}` gives each host half of the layers. A token passes through all of them in turn, so one stream is no faster; many
    streams fill both hosts, and little goes over the cable. It has no limits but the number of layers and vLLM 0.20, so it is what three hosts
    mostly need: few models have heads that divide by 3.

    Two servers, one on each host, behind a gateway are for more requests of a model that fits on one host: one stream is as fast as on one host
    (57.7 tok/s), 8 streams gave 178 in total, 32 gave 382, and 64 gave 568 where tensor parallelism gave 472. They fail and restart
    one at a time; of a cluster, one host's failure ends all.
    """
    if case.asked.platform != "gb10" or case.flag(MEMBERS) not in (None, 1):
        return
    sizes = {name: flags.integer(case.flag(name) or "") or 1 for name in (TENSOR, PIPELINE)}
    split = {name: size for name, size in sizes.items() if size > 1}
    if not split:
        return
    hosts = sizes[TENSOR] * sizes[PIPELINE]
    keys = ", ".join(f"{name.partition('-')[0]}: {size}" for name, size in split.items())
    named = " and ".join(f"{name}: {size}" for name, size in split.items())
    verb = "needs" if len(split) == 1 else "need"
    sentence = f"{named} {verb} {hosts} GPUs, and a GB10 has one: use a cluster."
    ways = (
        Way(
            f"write `parallel: {{{keys}}}` instead, and serve it from a group of {hosts} hosts with `cluster`",
            dict.fromkeys(split),
        ),
        Way("remove it to serve from one host", dict.fromkeys(split)),
    )
    yield Finding("error", sentence, ways, "vLLM's ParallelConfig", next(iter(split)))


@rule(
    "gid-index",
    sources=(
        "NCCL's documentation: unset, it takes for each adapter the RoCE v2 entry of its IPv4 address; empty means 0",
        "reports of two Sparks whose index moved from 3 to 4 while they ran, and after a reboot",
    ),
    example=Example(env={GID_INDEX: "3"}),
)
def gid_index(case: Case) -> Iterator[Finding]:
    """The index of an RDMA address is left to NCCL.
    The table of an adapter's addresses changes with its links, and an index may differ between hosts and between the two halves of one card. One that
    no longer fits lets members hang after the model was loaded, or fail with "ibv_modify_qp failed".
    """
    if GID_INDEX in case.asked.env:
        sentence = f"{GID_INDEX} pins an address's index, which differs between hosts and moves."
        yield Finding("warning", sentence, (Way("remove it"),), "NCCL's documentation", "container.env")
