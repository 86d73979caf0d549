"""Pydantic models of a playbook, with Ansible's structure and words."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, field_validator

from sparkwright.project.documents.validation import Strict
from sparkwright.project.rollout_policy import why_no_size

#: limit for tries, and for the seconds between them
MOST = 10**9

Condition = bool | str | list[bool | str]


class Common(Strict):
    """The keywords of both tasks and blocks."""

    name: str = Field("", description="the task's name, shown on the screen")
    when: Condition | None = Field(None, description="expressions that must all be true")
    tags: list[str] | str = Field(default_factory=list, description="for --tags; `always` and `never` as in Ansible")
    become: bool | None = Field(None, description="run as root, through sudo")
    server: str | None = Field(
        None, description="of a host with several servers: the container that it is about, if not the play's own"
    )
    vars: dict[str, Any] = Field(default_factory=dict, description="variables")
    stage: str = Field(
        "",
        max_length=24,
        description="the stage of the run that begins here, a line on a terminal: prepare, stop, start",
    )


class TaskFile(Common):
    """One module with its arguments. The module's name is the key that is none of these."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    register_as: str | None = Field(None, alias="register", description="variable that holds the result")
    until: Condition | None = Field(None, description="retry until this is true")
    retries: int = Field(0, ge=0, le=MOST, description="number of retries (3 with `until`)")
    delay: float = Field(5, ge=0, le=MOST, description="seconds between retries")
    notify: list[str] | str = Field(
        default_factory=list, description="handlers to run at the end if the task changed something"
    )
    changed_when: Condition | None = Field(None, description="when the task counts as changed")
    failed_when: Condition | None = Field(None, description="when the task counts as failed")
    ignore_errors: bool = Field(False, description="go on after a failure")
    no_log: bool = Field(False, description="hide message, data and diff")
    check_mode: bool | None = Field(None, description="true: always in check mode; false: act even with --check")


class BlockFile(Common):
    """Tasks that succeed or fail together."""

    block: list[dict[str, Any]] = Field(description="the tasks")
    rescue: list[dict[str, Any]] = Field(default_factory=list, description="tasks to run if one of them failed")
    always: list[dict[str, Any]] = Field(default_factory=list, description="tasks to run in any case")


class IncludeFile(Common):
    """Tasks of another file, as one block in its place."""

    include: str = Field(description="a file with a list of tasks, relative to this one: parts/swap.yml")


class PlayFile(Strict):
    """Tasks for some hosts."""

    name: str = Field("", description="what this play does")
    hosts: str = Field(description="a host pattern; --host narrows it")
    serial: list[int | str] | int | str = Field(default_factory=list, description='batch size: 1, "25%", [1, "50%"]')
    max_fail_percentage: float | None = Field(
        None, ge=0, le=100, description="stop when more than this share of a batch failed"
    )
    vars: dict[str, Any] = Field(default_factory=dict, description="variables")
    tags: list[str] | str = Field(default_factory=list, description="tags of all its tasks")
    become: bool = Field(False, description="run its tasks as root, through sudo")
    read_only: bool = Field(False, description="it changes nothing: it takes no lock and may run during a deploy")
    measures: bool = Field(
        False,
        description="it measures the server: while another run is in progress on the host it waits (`--wait`) "
        "or exits with 4",
    )
    force_handlers: bool = Field(False, description="run notified handlers even after a failure")
    tasks: list[dict[str, Any]] = Field(default_factory=list, description="tasks and blocks")
    handlers: list[dict[str, Any]] = Field(default_factory=list, description="tasks that run when notified")

    @field_validator("serial", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        for item in value if isinstance(value, list) else [value]:
            why = why_no_size(item)
            if why:
                raise ValueError(why)
        return value
