"""Operations on many hosts: batches, the rollout policy, the guard that keeps hosts serving, and the record."""
