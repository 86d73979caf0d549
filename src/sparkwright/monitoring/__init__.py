"""Monitoring: alert rules for Prometheus and a Grafana dashboard, based on the metrics that checks write."""
