"""What a proxy costs on the way between clients and pods, ours beside others: `python -m loadtest.bench proxy`."""
