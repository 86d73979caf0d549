"""Operations on many hosts: batches, the guard that keeps enough hosts serving, and the record of a rolling run."""
