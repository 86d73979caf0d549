"""The source of a secret, as a user's file names it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from sparkwright.project.documents.validation import Strict


class SecretSource(Strict):
    """The source of a secret on the laptop: one of an environment variable, a file, a command's output."""

    NAMES_A_SECRET: ClassVar[bool] = True  # messages about it never repeat the value

    env: str | None = Field(
        None, description="an environment variable of the laptop", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    file: str | None = Field(None, description="a file on the laptop; its content without the trailing newline")
    command: list[str] | None = Field(None, description="a command on the laptop, as a list; its output")

    @model_validator(mode="after")
    def _one(self) -> SecretSource:
        if sum(part is not None for part in (self.env, self.file, self.command)) != 1:
            raise ValueError("set exactly one of `env`, `file` and `command`.")
        return self
