"""Many hosts: batches, the rollout policy, the guard of what must keep serving, and the record."""
