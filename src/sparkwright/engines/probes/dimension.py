"""The probe of the length of a server's vectors: an index of vectors of one length takes none of another."""

from __future__ import annotations

from functools import partial

from sparkwright.engines import tasks
from sparkwright.engines.probes.probe import Probe, Reply, Seen
from sparkwright.visible import count


def judge(wanted: int, reply: Reply) -> Seen:
    """Judge if the vector has the wanted dimension."""
    judged = tasks.PROOFS["embed"].judge(reply.body)
    if judged.why_not:
        return Seen("disproved", f"the response was 200 {judged.why_not}", "another dimension")
    length = len(reply.body["data"][0]["embedding"])
    if length != wanted:
        return Seen("disproved", f"a vector of {count(length, 'number')} instead of {wanted}", "another dimension")
    return Seen("proved", f"a vector of {count(length, 'number')}")


def probe(wanted: int) -> Probe:
    """Return the probe of a vector length."""
    body = {"input": tasks.TEXT}
    return Probe(f"embedding of {wanted}", tasks.EMBEDDINGS, body, partial(judge, wanted), thinks=None)
