"""Hours of traffic and trouble in minutes, and a ledger of what came of it.

- `processes`, `pods`, `cluster`: pods and gateway, each a process of its own that can be killed and started again.
- `traffic`, `answers`: clients, and what they make of an answer. `trouble`: kills and faults. `watch`: what the gateway
  holds. `gateway_log`: what it says of failures.
- `ledger`, `report`: what of all that no fault explains.

Rule of this room: an error counts as explained only by a fault of a pod that the request met, while the fault was under
way, and only in a form that a client understands.
"""
