"""What the broker tells its operator: metrics for Prometheus, and log lines whose number is limited."""
