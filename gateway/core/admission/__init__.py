"""Who may come in now, who waits and in which order, who is sent away.

- `classes`: interactive, standard, batch. `quotas`: what a tenant may use. `queue`: those that wait, in order of
  service.
- `forecast`: how long a first token will take. `desk`: puts them together: a request comes, and it is let in, waits, or
  is refused; something ends, and others are let in.

Data goes one way: a `Waiter` comes to the desk, `Desk.ask` answers with a plan, `QUEUED` or `Refusal`; `Desk.pump`
yields those whose time has come.

Rule of this room: no clock, no tasks: time is an argument, plans are made by whoever asks. `net.admission` carries it
out on an event loop, `loadtest.experiments` under a virtual clock.
"""
