"""Modules that check a gateway's files, test its responses, record it as verified, and find the target of a rollback."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from sparkwright import units
from sparkwright.engines import api_paths, dialects, messages_api, openai_api, tasks
from sparkwright.engines.http import GENERATE, Task
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.gateway import wake
from sparkwright.gateway.render import CLIENT_KEYS_FILE, MODELS_PATH
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.gateway import container, gateway_folders, haproxy_sockets
from sparkwright.host.gateway.gateway_folders import ProofRecord, VerifiedGateway
from sparkwright.host.gateway.haproxy_sockets import Answer
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history
from sparkwright.protocol.container import SpecRecord
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import join_first

LEGACY_GATEWAY_ERROR = (
    "the previous verified gateway was deployed by sparkwright 0.1, whose container can change its own files, so it is not "
    "started again."
)

POLL_S = 0.2
#: how long requests are repeated while no server is up; by then the gateway's checks have noticed a server that has started
SETTLE_TIMEOUT_S = 15.0
#: how long requests to an on-demand model are repeated while no server is up; the model may be asleep
ASLEEP_TIMEOUT_S = 4.0
#: timeout of the first request if requests wait for a server; by then a gateway that just started has checked its servers
FIRST_TRY_TIMEOUT_S = 8.0
#: the gateway's error codes for a model of which no server is up
NOT_UP_CODES = ("model_not_up", "overloaded", wake.ERROR_CODE)
NOT_UP_ANSWER = Answer(503, {"error": {"code": NOT_UP_CODES[0]}})


@dataclass(frozen=True, kw_only=True)
class GatewayArgs:
    """Arguments shared by the modules that need a gateway's files."""

    spec: dict[str, Any] = arg("the gateway's container")
    files: dict[str, str] = arg("its files without secrets, by name", default_factory=dict)
    client_key: str = arg("the name of the secret with the clients' API key; empty if none is required", default="")
    server_keys: dict[str, str] = arg("names of the secrets with the servers' keys, by backend", default_factory=dict)
    certificate: str = arg("the name of the secret with certificate and key; empty for no TLS", default="")
    operators: dict[str, str] = arg(
        "the SHA-256 of each host's key for draining its servers, by host; empty if unknown",
        default_factory=dict,
    )
    clients: dict[str, str] = arg(
        "names of the secrets with the keys of individual clients, by client", default_factory=dict
    )
    kept: str = arg("the digest of a verified gateway whose files on the host are used instead of `files`", default="")

    def build_files(self, context: Context) -> dict[str, str]:
        """Return the contents of the gateway's files, with secrets, by name."""
        if self.kept:
            return gateway_folders.require_files(context, self.kept)
        return gateway_folders.compose_files(
            self.files, self.client_key, self.server_keys, self.certificate, self.operators, self.clients, context
        )


class GatewayCheck(Module["GatewayCheck.Args"]):
    """Check that the pinned HAProxy accepts the gateway's configuration (`haproxy -c`), and that its ports are free.

    Changes nothing: the files are in a temporary folder that only this user and the checking container can read. In check
    mode the configuration is not checked if the image is not on the host yet.

    Returns: digest (of the files; empty if not checked). Fails with HAProxy's message; refused if another program uses a
    port, or if a container that is not a sparkwright gateway has its name.
    """

    @dataclass(frozen=True, kw_only=True)
    class Args(GatewayArgs):
        port: int = arg("the port on which it listens")

    def run(self, args: Args, context: Context) -> Result:
        files = args.build_files(context)
        client = context.docker()
        current = container.find_current(args.spec["name"], context)
        container.find_previous(args.spec["name"], context)
        for port in _needed_ports(args):
            held_by_gateway = (
                bool(current) and current["State"]["Running"] and containers.has_port_binding(current, port)
            )
            if not held_by_gateway and (holder := containers.describe_port_holder(client, port)):
                fix = "Stop that program, or choose another `port` or `control_port` in `gateway:`."
                raise Refused(f"port {port} is in use by {holder}.", fix=fix)
        spec = container.resolve_spec(args.spec, context)
        if context.check and not image_names.find(
            client.api, spec.image, spec.image_ids, machine_platform(context.machine)
        ):
            return Result(msg="known after the image is pulled", data={"digest": ""})
        container.validate_files(args.spec, files, context)
        return Result(msg="valid", data={"digest": args.kept or gateway_folders.digest_of(files)})


def _needed_ports(args: GatewayCheck.Args) -> list[int]:
    """Return the gateway's port and its published ports, such as the control port."""
    published_ports = (str(text).rpartition(":")[2] for text in args.spec.get("ports") or ())
    return list(dict.fromkeys([args.port, *(int(port) for port in published_ports if port.isdecimal())]))


@dataclass(frozen=True, slots=True)
class GatewayKeepState:
    """The gateway's containers, and the last verified state."""

    #: Docker's inspection of the container; empty if there is none
    current: dict[str, Any]
    #: Docker's inspection of the replaced container; empty if there is none
    previous: dict[str, Any]
    #: the last verified state; empty if there is none
    verified_state: VerifiedGateway


class GatewayKeep(StateModule["GatewayKeep.Args", GatewayKeepState]):
    """Enable the restart policy of a verified gateway, record it as the last verified state, and remove the previous container.

    Returns: container_id. Fails if it is not running.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the gateway's container")
        digest: str = arg("the digest of its files, as `gateway_running` returns it")
        models: list[str] = arg("names of the models that it routes")
        proof: dict[str, Any] = arg(
            "values for `gateway_proof` after a rollback to this state: name, port, keyed, tls, models",
            default_factory=dict,
        )
        changed: list[Any] = arg("differences from the previous gateway, for the history", default_factory=list)
        rolled_back: bool = arg("true after a rollback: drop the states that were verified later", default=False)

    def read(self, args: Args, context: Context) -> GatewayKeepState:
        name = args.spec["name"]
        return GatewayKeepState(
            container.find_current(name, context),
            container.find_previous(name, context),
            gateway_folders.load_last(context),
        )

    def differences(self, args: Args, observed: GatewayKeepState) -> list[Change]:
        policy = observed.current["HostConfig"]["RestartPolicy"]["Name"] if observed.current else None
        changes = (
            [Change("restart", policy, args.spec["restart"], "verified")] if policy != args.spec["restart"] else []
        )
        recorded_state = observed.verified_state.container_id, observed.verified_state.digest
        if recorded_state != (observed.current.get("Id", ""), args.digest):
            changes.append(Change("last good state", recorded_state[1] or None, args.digest))
        if observed.previous:
            changes.append(Change("previous container", containers.name_of(observed.previous), None))
        return changes

    def describe(self, args: Args, observed: GatewayKeepState) -> dict[str, Any]:
        return {"container_id": observed.current.get("Id", "")}

    def act(self, args: Args, observed: GatewayKeepState, changes: list[Change], context: Context) -> dict[str, Any]:
        lifecycle.require_running(observed.current, args.spec["name"])
        lifecycle.set_policy(context, observed.current, args.spec["restart"])
        spec = container.resolve_spec(args.spec, context).to_json()
        record = VerifiedGateway(
            cast(SpecRecord, spec),
            container_id=observed.current["Id"],
            digest=args.digest,
            models=args.models,
            proof=cast(ProofRecord, args.proof),
        )
        gateway_folders.save_verified(context, record, rolled_back=args.rolled_back)
        if observed.previous:
            lifecycle.force_remove(context, observed.previous["Id"])
        gateway_folders.remove_folder(gateway_folders.state_of(context).path / gateway_folders.LEGACY_FOLDER)
        names = [change.get("field", "") for change in args.changed if isinstance(change, dict)]
        changed_fields = [{"field": field, "before": None, "after": None} for field in names]
        fields = {"container_id": observed.current["Id"], "image": args.spec["image"], "changed": changed_fields}
        event_name = "gateway rolled back" if args.rolled_back else "gateway verified"
        history.append(context, event_name, **fields, why=f"routes {', '.join(args.models)}")
        return {}


class GatewayLastGood(Module["GatewayLastGood.Args"]):
    """Find the target of a gateway rollback: the last verified gateway, or its predecessor if the last one is running.

    The host has its files, but only a hash of the clients' key, so the current key must be the one that it was deployed with.

    Returns: spec, digest (of its files), models, proof (values for `gateway_proof`). Refused if there is no such
    gateway, if its files are missing, or if it had another key.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the gateway's container", default="gateway")
        client_key: str = arg("the name of the secret with the clients' API key; empty if none is required", default="")

    def run(self, args: Args, context: Context) -> Result:
        target = _find_rollback_target(args.name, context)
        if gateway_folders.is_legacy(target.spec):
            raise Refused(LEGACY_GATEWAY_ERROR, fix="`invoke gateway.deploy` deploys the configuration in the project.")
        files = gateway_folders.state_files(context, target.digest)
        if not target.proof or not files:
            raise Refused(
                "the files of the previous verified gateway are no longer on the host.",
                fix="`invoke gateway.deploy` deploys the configuration in the project.",
            )
        verified_at = units.format_time(target.since, units.MINUTE_FORMAT)
        _refuse_other_key(files.get(CLIENT_KEYS_FILE, "").strip(), verified_at, args, context)
        data = {key: getattr(target, key) for key in ("spec", "digest", "models", "proof")}
        return Result(msg=f"verified {verified_at}: routes {', '.join(target.models)}", data=data)


def _find_rollback_target(name: str, context: Context) -> VerifiedGateway:
    """Return the verified state to roll back to. Raises Refused if there is none."""
    last_state = gateway_folders.load_last(context)
    if not last_state:
        raise Refused(f"no {name} has ever been verified on this host.", fix="`invoke gateway.deploy` deploys one.")
    if not _is_running(name, last_state, context):
        return last_state
    earlier_state = next(iter(gateway_folders.load_earlier(context)), VerifiedGateway())
    if not earlier_state:
        raise Refused(
            f"no gateway was verified before the running {name}.", fix="`invoke history` shows what was verified."
        )
    return earlier_state


def _is_running(name: str, state: VerifiedGateway, context: Context) -> bool:
    container = containers.inspect(context.docker(), name) or {}
    digest = haproxy_sockets.running_digest(gateway_folders.current_folders(gateway_folders.state_of(context)).sockets)
    return bool(container) and (container["Id"], digest) == (state.container_id, state.digest)


def _refuse_other_key(key_hash: str, verified_at: str, args: GatewayLastGood.Args, context: Context) -> None:
    current_hash = hashlib.sha256(_client_key(args, context).encode()).hexdigest()
    if key_hash and not _client_key(args, context):
        fix = "Set it as `key` in `gateway:`, then roll back."
        raise Refused(f"the gateway verified {verified_at} requires an API key.", fix=fix)
    if key_hash and key_hash != current_hash:
        fix = "Set `key` in `gateway:` to that key, or deploy with the current one: `invoke gateway.deploy`."
        raise Refused(
            f"the gateway verified {verified_at} requires a different API key from the current `key`.", fix=fix
        )


class GatewayProof(Module["GatewayProof.Args"]):
    """Check that each model generates a token through the gateway, and that a client without the key is rejected.

    The gateway's list of models must contain those that are up. A model whose recipe promises other APIs (`expect.probes:
    [messages, responses]`) must also generate a token through each of them, and count tokens through Anthropic's.

    A model without a server that is up can't be checked. It is reported, and the run exits with code 4, unless the model is
    on demand and may be asleep. Fails if no model generates.

    Returns: generated, not_up (names of models).
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        port: int = arg("the port on which it listens")
        models: dict[str, dict[str, Any]] = arg(
            "for each model its `task`, the `body` of the request to send, whether it is `on_demand`, whether requests "
            "for it wait for a server (`waits`), the other APIs that its recipe promises (`dialects`), and its `hosts`"
        )
        client_key: str = arg("the name of the secret with the clients' API key; empty if none is required", default="")
        tls: bool = arg("whether it uses https", default=False)
        timeout_s: float = arg("how long one token may take, seconds", default=60.0)

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="known after it runs", data={"generated": [], "not_up": []})
        if args.client_key:
            status = haproxy_sockets.send_request(_build_endpoint(args, context), MODELS_PATH).status
            if status != 401:
                raise Failed(f"a request without the key got status {status} instead of 401.")
        answers = {name: self._wait_for_answer(name, model, args, context) for name, model in args.models.items()}
        answering_models = [
            name for name, answer in answers.items() if _is_valid_answer(answer, args.models[name]["task"])
        ]
        not_up_models = [name for name, answer in answers.items() if answer.code in NOT_UP_CODES]
        for name, answer in answers.items():
            if name not in answering_models and name not in not_up_models:
                raise Failed(
                    f"{name} returned no {tasks.task_noun(args.models[name]['task'])} through the gateway: {answer.message}"
                )
        if not answering_models:
            hosts = dict.fromkeys(host for name in not_up_models for host in args.models[name].get("hosts") or ())
            host_option = f" --host {','.join(hosts)}" if hosts else ""
            raise Failed(
                f"no server of {', '.join(not_up_models)} is up.", fix=f"Run `invoke deploy{host_option}` first."
            )
        for name in answering_models:
            self._check_dialects(name, args.models[name], args, context)
        self._check_model_list(answering_models, args, context)
        data = {"generated": answering_models, "not_up": not_up_models}
        message = (
            f"{join_first(answering_models, 3)} returned "
            f"{_describe_answers(args.models[name]['task'] for name in answering_models)}"
        )
        asleep_models = [name for name in not_up_models if args.models[name].get("on_demand")]
        message += f"; asleep: {', '.join(asleep_models)}" if asleep_models else ""
        if missing := [name for name in not_up_models if name not in asleep_models]:
            return Result(msg=f"{message}; no server of {', '.join(missing)} is up", data=data, exit=Exit.INCONCLUSIVE)
        return Result(msg=message, data=data)

    def _wait_for_answer(self, name: str, model: dict[str, Any], args: Args, context: Context) -> Answer:
        """Return the answer to a model's request. It is repeated while no server is up: the gateway may still be checking."""
        timeout_s = ASLEEP_TIMEOUT_S if model.get("on_demand") else SETTLE_TIMEOUT_S
        deadline_s = time.monotonic() + timeout_s
        while True:
            answer = self._query_model(name, model, args, context)
            if answer.code not in NOT_UP_CODES or time.monotonic() > deadline_s:
                return answer
            context.progress(0, text=f"waiting for a server of {name}")
            time.sleep(POLL_S)

    def _query_model(self, name: str, model: dict[str, Any], args: Args, context: Context) -> Answer:
        """Return the answer to a model's request.

        No request is sent for a model that the gateway does not list: it would wait, or count as an error.
        """
        body, path = model["body"], tasks.proof_path(model["task"])
        waits = bool(model.get("waits"))
        if name not in self._query_model_names(args, context):
            return NOT_UP_ANSWER
        limits_s = (FIRST_TRY_TIMEOUT_S, args.timeout_s) if waits else (args.timeout_s,)
        for limit_s in limits_s:
            answer = haproxy_sockets.send_request(
                _build_endpoint(args, context), path, body, key=_client_key(args, context), timeout_s=limit_s
            )
            if waits and answer.status != 200 and name not in self._query_model_names(args, context):
                return NOT_UP_ANSWER
            if answer.status:
                break
        return answer

    def _check_dialects(self, name: str, model: dict[str, Any], args: Args, context: Context) -> None:
        """Raise Failed if a model does not generate through an API that its recipe promises."""
        for dialect_name in model.get("dialects") or ():
            dialect = dialects.OTHER_DIALECTS[dialect_name]
            answer = self._query_gateway(dialect.path, dialect.convert_request(model["body"]), args, context)
            usage = dialect.convert_answer(answer.data).get("usage") or {}
            if answer.status != 200 or not usage.get("completion_tokens"):
                raise Failed(f"{name} returned no token through the gateway's {dialect.path}: {answer.message}")
            if dialect is dialects.MESSAGES:
                count_answer = self._query_gateway(
                    api_paths.COUNT_TOKENS_PATH, messages_api.build_count_request(model["body"]), args, context
                )
                if not isinstance(count_answer.data, dict) or not count_answer.data.get("input_tokens"):
                    raise Failed(f"{name} counted no tokens through the gateway: {count_answer.message}")

    @staticmethod
    def _query_gateway(path: str, body: dict[str, Any], args: Args, context: Context) -> Answer:
        return haproxy_sockets.send_request(
            _build_endpoint(args, context), path, body, key=_client_key(args, context), timeout_s=args.timeout_s
        )

    def _check_model_list(self, answering_models: list[str], args: Args, context: Context) -> None:
        """Wait up to SETTLE_TIMEOUT_S for the gateway to list every model that generated. Raises Failed after that."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while missing := sorted({*answering_models} - self._query_model_names(args, context)):
            if time.monotonic() > deadline_s:
                raise Failed(f"the gateway's {MODELS_PATH} does not list {', '.join(missing)}.")
            time.sleep(POLL_S)

    @staticmethod
    def _query_model_names(args: Args, context: Context) -> set[Any]:
        data = haproxy_sockets.send_request(
            _build_endpoint(args, context), MODELS_PATH, key=_client_key(args, context)
        ).data
        rows = data.get("data") if isinstance(data, dict) else None
        return {row.get("id") for row in rows if isinstance(row, dict)} if isinstance(rows, list) else set()


def _describe_answers(answered_tasks: Iterable[Task]) -> str:
    """Return the kinds of answers, such as "a token or a vector"."""
    return " or ".join(f"a {noun}" for noun in dict.fromkeys(map(tasks.task_noun, answered_tasks)))


def _is_valid_answer(answer: Answer, task: Task) -> bool:
    if answer.status != 200 or not isinstance(answer.data, dict):
        return False
    if task == GENERATE:
        return openai_api.count_tokens(answer.data) > 0
    return bool(tasks.PROOFS[task].evaluate(answer.data).content)


def _build_endpoint(args: GatewayProof.Args, context: Context) -> haproxy_sockets.Endpoint:
    return haproxy_sockets.Endpoint(
        args.port, args.tls, gateway_folders.current_folders(gateway_folders.state_of(context)).sockets
    )


def _client_key(args: GatewayProof.Args | GatewayLastGood.Args, context: Context) -> str:
    secret = context.secrets.get(args.client_key) if args.client_key else None
    return secret.reveal() if secret else ""
