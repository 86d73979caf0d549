"""Running playbooks: from a command's options to a fleet, its output, and its rollout record."""
