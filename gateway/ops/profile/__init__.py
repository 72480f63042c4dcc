"""`ppd-gateway profile`: measures on live pods what each route costs, cell by cell.

- `plan` is the grid and what each cell is made of; `schedule` says when turns arrive.
- `measure.CellRun` is one cell being measured: counts turns, knows when to stop, makes the numbers. No clock, no I/O.
- `campaign` goes through a plan with a `Bench` that can measure one cell, and writes `book`, the raw file.
- `bench` is the `Bench` for live pods: a gateway per arm (`ops.serve`), `talks` (conversations, built with `words`),
  `client` (streams and stop watches), `pods` (what the pods say of themselves).
- `command` and `progress` are what a person sees.

Data goes one way: plan → campaign → bench → measure → book. `loadtest.profile_virtual` is another bench, on the
engine model and a virtual clock, under the same plan, campaign and book.

What the rate axis counts: measured turns per second that reach the gateway. The first turns, which only put the
context in place, are all over before the first measured turn is sent, so no other turn is at the gateway then.
"""
