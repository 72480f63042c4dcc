"""A model of one vLLM engine: what it computes, holds and hands over, and how long each step takes.

- `profile` has the numbers (step costs, cache size, link), read from `profiles/*.toml`.
- `tokens` names token blocks by content, `segments` by the names of pieces; `text` is a sequence of either kind.
- `blocks` is the paged prefix cache built on these names.
- `request` is what goes in and what comes out; `schedule` says who runs, `core.Engine` what a step costs and gives.
- `leap` is a run of decode steps that are alike, taken as one.
- `kv_events` is what it says of its prefix cache.
- `leases` and `transfer` are the two ends of a KV hand-over (who still holds blocks; how long the wire takes).
- `realtime` runs the engine on an asyncio loop, `virtual` runs any number of engines on a virtual clock.

Rule of this room: `core` and everything below it is synchronous and gets its clock as an argument (seconds, float).
Only `realtime` knows asyncio. The model is vLLM's v1 scheduler (vllm/v1/core/sched/scheduler.py, 0.32), reduced
to what a gateway can see from outside.
"""
