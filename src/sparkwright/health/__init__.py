"""The health check of a host: observation, evaluation, record and notification. It runs on the host, without a laptop."""
