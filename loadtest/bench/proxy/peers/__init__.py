"""Proxies of our own making to compare the gateway with. They are measured, nothing else: no faults, no features."""
