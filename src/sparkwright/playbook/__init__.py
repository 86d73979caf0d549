"""Playbooks: Ansible's shape and words, compiled to a Plan for each host."""

from sparkwright.playbook.compile import compile
from sparkwright.playbook.listing import list_tasks
from sparkwright.playbook.playbook import Options, Play, Playbook, load

__all__ = ["Options", "Play", "Playbook", "compile", "list_tasks", "load"]
