"""Our client, or the request function of `vllm bench serve`, in a process of the Python that has it.

    python child.py ours|vllm URL STREAMS TOKENS        prints JSON; CPU time is that of the requests, without the imports

It does not import the benchmark's modules, so that any Python can run it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any


def ours(url: str, count: int, tokens: int) -> dict[str, Any]:
    """Run sparkwright's streams and return its own summary of them."""
    from sparkwright.engines import openai_api
    from sparkwright.engines.vllm.http import HTTP
    from sparkwright.measure import figures, load
    from sparkwright.measure.http_probe import Target

    requests = [load.Request(openai_api.build_stream_request(HTTP, "m", f"{n} hello", tokens)) for n in range(count)]
    cpu_s = time.process_time()
    outcomes = load.send_all(Target(HTTP, url, timeout_s=120), requests)
    streams = [outcome.stream for outcome in outcomes if outcome.stream]
    summary = figures.summarize(streams)
    cpu_s = time.process_time() - cpu_s
    return {
        "ttft_s": [stream.ttft_s for stream in streams],
        "gaps_s": [gap for stream in streams for gap in stream.gaps_s],
        "tok_per_s": summary.tok_per_s,
        "request_cpu_s": cpu_s,
    }


def vllm(url: str, count: int, tokens: int) -> dict[str, Any]:
    """Run vLLM's request function with the session that its benchmark creates for this concurrency."""
    import aiohttp
    from vllm.benchmarks.lib import endpoint_request_func as lib

    def request(n: int) -> Any:
        return lib.RequestFuncInput(
            prompt=f"{n} hello", api_url=f"{url}/v1/chat/completions", prompt_len=9, output_len=tokens, model="m",
            ignore_eos=True, extra_body={"temperature": 0},
        )  # fmt: skip

    async def send_all() -> list[Any]:
        connector = aiohttp.TCPConnector(limit=count, limit_per_host=count, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector, timeout=lib.AIOHTTP_TIMEOUT, trust_env=True) as session:
            send = lib.async_request_openai_chat_completions
            return list(await asyncio.gather(*(send(request(n), session) for n in range(count))))

    cpu_s, started_s = time.process_time(), time.perf_counter()
    outputs = asyncio.run(send_all())
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return {
        "ttft_s": [output.ttft for output in outputs if output.success],
        "gaps_s": [gap for output in outputs for gap in output.itl],
        "tok_per_s": sum(output.output_tokens for output in outputs) / wall_s,
        "request_cpu_s": cpu_s,
    }


CLIENTS: dict[str, Callable[[str, int, int], dict[str, Any]]] = {"ours": ours, "vllm": vllm}

if __name__ == "__main__":
    name, url, count, tokens = sys.argv[1:]
    json.dump(CLIENTS[name](url, int(count), int(tokens)), sys.stdout)
