"""spark.lock: the digests of tags and the commits of branches at the time they were pinned."""
