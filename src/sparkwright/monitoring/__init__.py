"""For a monitoring system: alert rules of Prometheus and a dashboard of Grafana, over the metrics that checks write."""
