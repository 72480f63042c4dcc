"""Stand-ins for the world around the gateway: conversations, load, and vLLM pods (simulated or real on CPU)."""
