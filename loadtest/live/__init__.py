"""Load tests of live deployments: `ppd-gateway loadtest`.

Rule of this room: it knows OpenAI's API and nothing of gateways or pods, so that whatever answers can be compared.

- talks: what is said. A `Source` yields conversations, the same for the same seed.
- schedule: when, to which endpoint and model: a list of `Planned` conversations, made before anything is sent.
- driver: carries the plan out against a clock, and holds nothing back because an answer is slow.
- client, connection, sse: one request, its bytes, its tokens.
- book, figures, compare, overhead: what was seen becomes numbers; lines, report, plots, results: numbers become text.
"""
