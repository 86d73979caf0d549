"""The protocol between laptop and host: the laptop sends a Plan, and the host answers with Events."""
