from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.module import Context, Module
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.protocol.result import Result, arg

FIELDS = ("id", "commit", "files", "dir", "transfer")


class SecondModels(Module["SecondModels.Args"]):
    """The folders of a server's further models (one that drafts, a tokenizer) hold the locked files, each proved by its hash.

    Each is handled as `hf_model` handles the model, and comes from the hub.

    Returns: models (role, and what `hf_model` returns of each).

    Fails: as `hf_model`, with the role.
    """

    @dataclass(frozen=True)
    class Args:
        models: list[dict[str, Any]] = arg(
            "role, id, commit, files, dir and transfer of each, as `pinned_model.models` in scope has them",
            default_factory=list,
        )

    def run(self, args: Args, context: Context) -> Result:
        found = [(str(model["role"]), self._proved(model, context)) for model in args.models]
        return Result(
            msg="; ".join(f"{role}: {result.msg}" for role, result in found),
            changed=any(result.changed for _, result in found),
            diff=[replace(row, field=f"{role}: {row.field}") for role, result in found for row in result.diff],
            data={"models": [{"role": role, **result.data} for role, result in found]},
        )

    @staticmethod
    def _proved(model: dict[str, Any], context: Context) -> Result:
        try:
            return HfModel().run(HfModel.Args(**{name: model[name] for name in FIELDS}), context)
        except KeyError as error:
            raise Failed(f"the {model['role']} has no {error.args[0]}.", fix="Run `invoke lock`.") from None
