"""wire: speaks vLLM's and OpenAI's dialect, as pure functions on bytes.

- Reads what the gateway needs of a request and leaves every other byte alone (`fields`, `prompts`).
- Derives the prefill and the decode leg from the client's body by one table (`contract`, `legs`).
- Taps answers on their way back: usage, reply head, errors (`sse`, `answers`).
- Knows nothing of pods, policies, sockets or clocks, and imports nothing else of this project.
"""
