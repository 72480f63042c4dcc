"""The admin API: what operators and their tools see and change while the gateway runs.

- `routes` is the one table: method, path, types in and out, handler. Requests are served from it and the OpenAPI
  document is printed from it, so the two cannot differ.
- `handlers` do the work on one process's parts, `schemas` are what goes in and out, `decisions` remembers the last
  requests, `flow` and `heatmap` are worked out of them when asked.
- `fan` takes a call to all workers and puts their answers together; `server` is HTTP and who may call.
"""
