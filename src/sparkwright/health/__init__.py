"""The health check of a host: observation, judgement, record and notification. It runs on the host, without a laptop."""
