"""Playbooks with Ansible's structure and keywords, compiled to a Plan for each host."""

from sparkwright.project.playbook.compiler import compile
from sparkwright.project.playbook.playbook import Options, Play, Playbook, load
from sparkwright.project.playbook.selection import list_tasks

__all__ = ["Options", "Play", "Playbook", "compile", "list_tasks", "load"]
