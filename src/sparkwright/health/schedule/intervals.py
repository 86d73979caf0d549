"""How often, where nobody says it: a check, a restart that heals, a measurement of the decode rate."""

EVERY, HEAL_EVERY, SMOKE_EVERY = "5m", "1h", "6h"
