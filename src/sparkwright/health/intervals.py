"""How often, in seconds, where nobody says it: a check, a restart that heals, a measurement of the decode rate."""

EVERY_S = 300.0
HEAL_EVERY_S = 3600.0
SMOKE_EVERY_S = 6 * 3600.0
