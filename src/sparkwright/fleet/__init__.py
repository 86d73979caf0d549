"""Operations on many hosts: batches, the rollout policy, the guard of serving hosts, and the record."""
