"""Profiling on the engine model and a virtual clock: thousands of turns a second, the same numbers every time.

- `bench.VirtualBench` measures one cell, as `gateway.ops.profile.bench.LiveBench` does on live pods: under the same
  plan, campaign, stop rules and raw file, with the gateway's own `decide`.
- `world.World` is the pods of one cell. `python -m loadtest.virtual_profile` makes the raw files of the shipped table.

Rule of this room: no clock but the virtual one and no dice without a seed; two runs write the same bytes.
"""
