"""core: decides. Plain objects in, plain objects out.

- No asyncio, no sockets, no clock of its own (time is an argument), no text of anyone's messages.
- `chains` and `conversations` recognise who is talking; `pods` knows who could answer; `decide` picks a route by
  one of the `policies` and the pods by `placement`; `fallback` says what to try when that failed.
- To change the policy, go to `policies`. Everything else here serves it.
"""
