"""Monitoring integration: alert rules for Prometheus and a Grafana dashboard, over the metrics that checks write."""
