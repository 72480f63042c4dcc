"""net: moves bytes between clients and pods.

- `server` takes requests off sockets and hands them on as `exchange.Incoming` / `exchange.Outgoing`; nothing else
  knows which HTTP library serves.
- `gateway` finds the handler; `generation` carries out the plan that `gateway.core` made; `relay` passes a stream on.
- `upstream` talks to pods and turns every way they can fail into one `PodFault`; `health` watches them.
- Sees core and wire; decides nothing itself.
"""
