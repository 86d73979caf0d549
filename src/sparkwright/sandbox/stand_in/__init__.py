"""A stand-in for HAProxy that serves a simulated Spark's gateway where HAProxy is not installed."""
