"""The facts of a running server for `engine.causes`: from its container, its log and its host, never from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.doctor.diagnosis.diagnosis_input import DiagnosisInput, RecipeFacts
from sparkwright.doctor.diagnosis.stream_measurement import Measured
from sparkwright.engines import advice, slowness
from sparkwright.engines import http as roles
from sparkwright.host import evidence
from sparkwright.host.memory import gpu_use
from sparkwright.host.module import Context
from sparkwright.measure import http_probe, server_metrics
from sparkwright.measure.server_metrics import risen


def seen(
    context: Context,
    facts: RecipeFacts,
    good: Mapping[str, Any],
    server: DiagnosisInput,
    found: Measured | None,
    url: str,
) -> slowness.Seen:
    """Return the facts of an inspected server. found, url: of a server that was measured."""
    config = server.inspected.get("Config") or {}
    words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
    command, advises = server.engine.command([str(word) for word in words]), server.engine.advice
    env = dict(str(item).partition("=")[::2] for item in config.get("Env") or ())
    folder = _model_folder(context, good, server, command.model)
    model = evidence.model_config(folder) if folder and folder.is_dir() else {}
    version = advises.version(_version(server, url))
    file = {"model": command.model} if server.engine.files else {}
    box = {"network": str((server.inspected.get("HostConfig") or {}).get("NetworkMode") or "")}
    flags = {**command.flags, **file}
    reported = advice.ServerRequest(flags, str(config.get("Image") or ""), facts.platform, env, container=box)
    measured = found or Measured()
    on_gpu, on_gpu_why = _on_gpu(context, server)
    return slowness.Seen(
        engine=server.engine,
        on_gpu=on_gpu,
        on_gpu_why=on_gpu_why,
        gpu=measured.gpu.sentence,
        gpu_degraded=measured.gpu_degraded,
        log=server.log.to_json() if server.log is not None else None,
        ollama=evidence.ollama(context),
        memory=evidence.memory(context),
        busy=server_metrics.busy(measured.before),
        kv_used=measured.after.get(roles.KV_CACHE_USED),
        preempted=risen(measured.before, measured.after, roles.PREEMPTIONS),
        acceptance=measured.acceptance,
        findings=advises.check(reported, model, version) if server.inspected else (),
        flags=command.flags,
        model=str((good.get("model") or {}).get("id", "")) or facts.model_id or command.model,
        thought=measured.thought,
        answered=measured.answered,
        budget=advises.effective(reported, model, version).budget if server.inspected else None,
    )


def _on_gpu(context: Context, server: DiagnosisInput) -> tuple[bool | None, str]:
    """Return (True if a running container computes on the GPU that it requests, the evidence); None: unknown or not requested."""
    asks = (server.inspected.get("HostConfig") or {}).get("DeviceRequests")
    if not asks or server.box.status != "running":
        return None, ""
    use = gpu_use.inspect(server.box.name, context)
    return {"gpu": True, "no gpu": False}.get(use.verdict), use.why


def _version(server: DiagnosisInput, url: str) -> str | None:
    """Return the engine's version from its log, else from the server."""
    answer = server.log.value("version") if server.log is not None else None
    found = answer or (http_probe.version(server.engine.http, url) if url else None)
    return str(found) if found else None


def _model_folder(context: Context, good: Mapping[str, Any], server: DiagnosisInput, model: str) -> Path | None:
    """Return the model's folder on the host: the source of the mount with the engine's model path."""
    for bind in (server.inspected.get("HostConfig") or {}).get("Binds") or ():
        source, _, target = str(bind).partition(":")
        inside = target.partition(":")[0]
        if inside and (model == inside or model.startswith(f"{inside}/")):
            return Path(source) / model[len(inside) :].lstrip("/")
    folder = (good.get("model") or {}).get("dir") if server.box.verified else None
    return context.machine.expand(str(folder)) if folder else None
