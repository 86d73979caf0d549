"""Our client, or the request function of `vllm bench serve`, in a process of the Python that has it.

    python child.py ours|vllm URL STREAMS TOKENS        prints JSON; CPU is counted for the requests only, imports are done before

It imports nothing of the benchmark, so that any Python can run it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any


def ours(url: str, streams: int, tokens: int) -> dict[str, Any]:
    """Run sparkwright's streams and return its own summary of them."""
    from sparkwright.engines import openai_api
    from sparkwright.engines.vllm.http import HTTP
    from sparkwright.measure import figures, load

    requests = [load.Request(openai_api.build_stream_request(HTTP, "m", f"{n} hello", tokens)) for n in range(streams)]
    cpu_s = time.process_time()
    outcomes = load.send_all(url, requests)
    found = [one.stream for one in outcomes if one.stream]
    summed = figures.summarize(found)
    cpu_s = time.process_time() - cpu_s
    return {
        "ttft_s": [one.ttft_s for one in found],
        "gaps_s": [gap for one in found for gap in one.gaps_s],
        "tok_per_s": summed.tok_per_s,
        "request_cpu_s": cpu_s,
    }


def vllm(url: str, streams: int, tokens: int) -> dict[str, Any]:
    """Run vLLM's request function with the session that its benchmark creates for this concurrency."""
    import aiohttp
    from vllm.benchmarks.lib import endpoint_request_func as lib

    def request(n: int) -> Any:
        return lib.RequestFuncInput(
            prompt=f"{n} hello",
            api_url=f"{url}/v1/chat/completions",
            prompt_len=9,
            output_len=tokens,
            model="m",
            ignore_eos=True,
            extra_body={"temperature": 0},
        )

    async def all_of_them() -> list[Any]:
        connector = aiohttp.TCPConnector(limit=streams, limit_per_host=streams, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector, timeout=lib.AIOHTTP_TIMEOUT, trust_env=True) as session:
            send = lib.async_request_openai_chat_completions
            return list(await asyncio.gather(*(send(request(n), session) for n in range(streams))))

    cpu_s, started_s = time.process_time(), time.perf_counter()
    found = asyncio.run(all_of_them())
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return {
        "ttft_s": [one.ttft for one in found if one.success],
        "gaps_s": [gap for one in found for gap in one.itl],
        "tok_per_s": sum(one.output_tokens for one in found) / wall_s,
        "request_cpu_s": cpu_s,
    }


CLIENTS: dict[str, Callable[[str, int, int], dict[str, Any]]] = {"ours": ours, "vllm": vllm}

if __name__ == "__main__":
    name, where, count, limit = sys.argv[1:]
    json.dump(CLIENTS[name](where, int(count), int(limit)), sys.stdout)
