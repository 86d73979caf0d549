from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.engine import Name, of
from sparkwright.engines.findings import Finding
from sparkwright.errors import Exit
from sparkwright.host.images import engine_image
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust import bounds


class Lint(Module["Lint.Args"]):
    """The flags are ones that this very engine will start with, for this very model. Nothing is changed.

    The laptop has looked already, with what the lock and the tables say; here the image itself says its version and its
    options, and the model's own config.json is there. An error refuses the run while the previous server still serves.

    Returns: engine_version (null when nothing says it), listed (how many options the image named), options (what makes them from
    those of a known release; null when it named none), findings.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the image, as repository:tag@digest")
        flags: dict[str, Any] = arg("the flags of the engine, under their own names")
        model_dir: str = arg("the model's folder on the host", default="")
        platform: Literal["gb10", "ascend"] = arg("whose rules the flags must keep", default="gb10")
        model_by_flag: bool = arg("of ejected playbooks; without effect", default=True)
        env: dict[str, str] = arg("the container's environment", default_factory=dict)
        engine: Name = arg("the engine in the image", default="vllm")
        network: str = arg("the container's network; on the host's, a server may listen on the loopback", default="")
        image_ids: list[str] = arg("the Ids that prove the image; what a pull noted if not given", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        engine = of(args.engine)
        image = engine_image.ask(context, args.image, args.image_ids, engine)
        if image is None:
            data: dict[str, Any] = {"engine_version": None, "findings": []}
            return Result(msg="not checked: the image is not on the host yet", data=data)
        box = {"network": args.network}
        request = ServerRequest(args.flags, args.image, args.platform, args.env, container=box)
        model = _config(args, context)
        found = engine.advice.check(request, model, engine.advice.version(image.version), image.listed)
        rows = [finding.to_json() for finding in found]
        about = {"engine_version": image.version, "listed": len(image.listed), "options": image.options}
        data = {**about, "findings": rows}
        bad = [finding for finding in found if finding.severity == "error"]
        if not bad:
            message = f"{engine.title} {image.version or 'of unknown version'}, {engine.advice.kind(model).sentence}"
            return Result(msg="; ".join([message, *_warnings(found)]), data=data)
        ways = "; or ".join(way.text for way in bad[0].ways_out)
        more = [f"{finding.rule}: {finding.sentence}" for finding in bad[1:]]
        fix = f"{ways[:1].upper()}{ways[1:]}. Why: `invoke explain {bad[0].rule}`." if ways else ""
        return Result(failed=True, exit=Exit.REFUSED, msg=bad[0].sentence, fix=fix, data={**data, "evidence": more})


def _warnings(found: list[Finding]) -> list[str]:
    warned = [finding.sentence.rstrip(".") for finding in found if finding.severity == "warning"]
    count = "1 warning" if len(warned) == 1 else f"{len(warned)} warnings, first"
    return [f"{count}: {warned[0]}"] if warned else []


def _config(args: Lint.Args, context: Context) -> dict[str, Any]:
    try:
        return bounds.config_of(context.machine.expand(args.model_dir) / "config.json")
    except (OSError, ValueError):
        return {}
