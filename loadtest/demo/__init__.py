"""`make demo`: a gateway in front of simulated pods, a few conversations, and what became of each turn.

- `story` tells it in order; `options` are its flags; `__main__` runs it, turns signals and errors into an exit status.
- `children` starts processes, keeps their last words and ends them; `leash` makes them end even if this process is
  killed; `cluster` is one prefill pod, three decode pods and a gateway made of them.
- `traffic` writes the conversations; `loadtest.conversations` plays them.
- `access_log` reads what the gateway says of each request, `record` joins it with what the client measured;
  `counters` reads what the pods count, `lateness` how busy the machine is; `summary` makes medians and changes of it
  all, `screen` and `report` print.

Rule of this room: every number on the screen was measured in this run, and it says that the pods are simulated.
"""
