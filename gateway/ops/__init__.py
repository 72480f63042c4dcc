"""ops: what an operator touches.

- `cli` is the command; `config` turns flags, environment and file into one `Config`; `serve` builds and runs it.
- `metrics` and `logs` are observers of `gateway.net`: counters for machines, one line per request for people.
"""
