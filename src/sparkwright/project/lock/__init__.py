"""spark.lock: what a tag and a branch meant when they were pinned."""
