"""What answers for a simulated Spark's gateway where HAProxy is not installed."""
