"""Run playbooks: turn a command's options into a fleet, its output, and its rollout record."""
