from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparkwright.engines import api_paths, dialects, messages_api, openai_api, tasks
from sparkwright.engines.http import GENERATE, Task
from sparkwright.errors import Exit, Failed
from sparkwright.gateway.render import MODELS
from sparkwright.host.gateway import haproxy_sockets, place
from sparkwright.host.gateway.haproxy_sockets import Answer
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import count

POLL_S = 0.2
#: how long a request is repeated while no server is up, seconds: by then the gateway's checks have found a lost one
SETTLE_S = 15.0
#: the same for a server on demand, which may be asleep
ASLEEP_S = 4.0
#: timeout of the first try if a request waits for a server: by then a gateway that just started knows which are up
FIRST_TRY_S = 8.0
NOT_UP = ("model_not_up", "overloaded")
NOBODY = Answer(503, {"error": {"code": NOT_UP[0]}})


class GatewayProof(Module["GatewayProof.Args"]):
    """Each model of the gateway generates a token through it, a client without the key is refused, and it lists what is up.

    A model whose recipe promises other APIs (`expect.probes: [messages, responses]`) generates one through each of them too, and
    its tokens are counted where Anthropic's is one.

    A model of which no server is up proves nothing, neither for nor against the gateway: it is named, and the run ends with exit
    code 4, unless it is on demand and may be asleep. Without any model that generates it fails.

    Returns: generated, not_up (names of models).
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        port: int = arg("where it listens")
        models: dict[str, dict[str, Any]] = arg(
            "for each model its `task`, the `body` of the request that proves it, whether it is `on_demand`, whether a "
            "request for it `waits`, and the other APIs that its recipe promises (`dialects`)"
        )
        client_key: str = arg("the name of the secret that clients send; empty for none", default="")
        tls: bool = arg("whether it is asked by https", default=False)
        timeout_s: float = arg("how long one token may take, seconds", default=60.0)

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="known after it runs", data={"generated": [], "not_up": []})
        if args.client_key and (status := haproxy_sockets.request(_door(args, context), MODELS).status) != 401:
            raise Failed(f"a client without the key is answered with {status} instead of 401.")
        answers = {name: self._settled(name, body, args, context) for name, body in args.models.items()}
        generated = [name for name, answer in answers.items() if _proved(answer, args.models[name]["task"])]
        not_up = [name for name, answer in answers.items() if answer.code in NOT_UP]
        for name, answer in answers.items():
            if name not in generated and name not in not_up:
                raise Failed(
                    f"{name} gives no {tasks.noun_of(args.models[name]['task'])} through the gateway: {answer.message}"
                )
        if not generated:
            raise Failed(f"no server of {', '.join(not_up)} is up.", fix="Run `invoke deploy` first.")
        for name in generated:
            self._prove_dialects(name, args.models[name], args, context)
        self._refuse_other_list(generated, args, context)
        data = {"generated": generated, "not_up": not_up}
        message = f"{count(len(generated), 'model')} gave {_what(args.models[name]['task'] for name in generated)}"
        asleep = [name for name in not_up if args.models[name].get("on_demand")]
        message += f"; asleep: {', '.join(asleep)}" if asleep else ""
        if missing := [name for name in not_up if name not in asleep]:
            return Result(msg=f"{message}; no server of {', '.join(missing)} is up", data=data, exit=Exit.INCONCLUSIVE)
        return Result(msg=message, data=data)

    def _settled(self, name: str, body: dict[str, Any], args: Args, context: Context) -> Answer:
        """Return the answer to a model's request; ask again while no server is up, for the gateway may be checking one right
        now."""
        settle_s = ASLEEP_S if body.get("on_demand") else SETTLE_S
        until_s = time.monotonic() + settle_s
        while True:
            found = self._answer(name, body, args, context)
            if found.code not in NOT_UP or time.monotonic() > until_s:
                return found
            context.progress(0, text=f"waiting for a server of {name}")
            time.sleep(POLL_S)

    def _answer(self, name: str, body: dict[str, Any], args: Args, context: Context) -> Answer:
        """Return the answer to a model's request.

        A model that the gateway does not list is not requested: the request would wait, or count as an error.
        """
        payload, path = body["body"], tasks.path(body["task"])
        waits = bool(body.get("waits"))
        if name not in self._listed(args, context):
            return NOBODY
        limits_s = (FIRST_TRY_S, args.timeout_s) if waits else (args.timeout_s,)
        for limit_s in limits_s:
            found = haproxy_sockets.request(
                _door(args, context), path, payload, key=_key(args, context), timeout_s=limit_s
            )
            if waits and found.status != 200 and name not in self._listed(args, context):
                return NOBODY
            if found.status:
                break
        return found

    def _prove_dialects(self, name: str, body: dict[str, Any], args: Args, context: Context) -> None:
        """Raise Failed if a model does not generate in an API that its recipe promises."""
        for promised in body.get("dialects") or ():
            dialect = dialects.OTHERS[promised]
            answer = self._asked(dialect.path, dialect.request(body["body"]), args, context)
            usage = dialect.answer(answer.data).get("usage") or {}
            if answer.status != 200 or not usage.get("completion_tokens"):
                raise Failed(f"{name} gives no token through the gateway's {dialect.path}: {answer.message}")
            if dialect is dialects.MESSAGES:
                counted = self._asked(api_paths.COUNT_TOKENS, messages_api.counted(body["body"]), args, context)
                if not isinstance(counted.data, dict) or not counted.data.get("input_tokens"):
                    raise Failed(f"{name} counts no tokens through the gateway: {counted.message}")

    @staticmethod
    def _asked(path: str, body: dict[str, Any], args: Args, context: Context) -> Answer:
        return haproxy_sockets.request(
            _door(args, context), path, body, key=_key(args, context), timeout_s=args.timeout_s
        )

    def _refuse_other_list(self, generated: list[str], args: Args, context: Context) -> None:
        """Raise Failed if the gateway's list lacks a model that generated.

        A single answer proves nothing, as the gateway may be checking a server: it is asked again for a while.
        """
        until_s = time.monotonic() + SETTLE_S
        while missing := sorted({*generated} - self._listed(args, context)):
            if time.monotonic() > until_s:
                raise Failed(f"{MODELS} of the gateway does not list {', '.join(missing)}.")
            time.sleep(POLL_S)

    @staticmethod
    def _listed(args: Args, context: Context) -> set[Any]:
        found = haproxy_sockets.request(_door(args, context), MODELS, key=_key(args, context)).data
        rows = found.get("data") if isinstance(found, dict) else None
        return {row.get("id") for row in rows if isinstance(row, dict)} if isinstance(rows, list) else set()


def _what(given: Iterable[Task]) -> str:
    """Return the kinds of answers in words: "a token", or "a token or a vector"."""
    return " or ".join(f"a {noun}" for noun in dict.fromkeys(map(tasks.noun_of, given)))


def _proved(answer: Answer, task: Task) -> bool:
    if answer.status != 200 or not isinstance(answer.data, dict):
        return False
    if task == GENERATE:
        return openai_api.tokens_of(answer.data) > 0
    return bool(tasks.PROOFS[task].judge(answer.data).holds)


def _door(args: GatewayProof.Args, context: Context) -> haproxy_sockets.Door:
    return haproxy_sockets.Door(args.port, args.tls, place.current(place.state_of(context)).sockets)


def _key(args: GatewayProof.Args, context: Context) -> str:
    found = context.secrets.get(args.client_key) if args.client_key else None
    return found.reveal() if found else ""
