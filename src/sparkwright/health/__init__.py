"""The health check of a host: observation, judgement, record and notification. Runs on the host, without a laptop."""
