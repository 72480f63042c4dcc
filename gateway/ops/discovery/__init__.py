"""Finding pods: DNS names, a file, the Kubernetes API.

- A source (`names`, `files`, `kubernetes`) says what pods there are, again whenever that changes.
- `core.settling` decides how much of an answer is believed yet.
- `keeper` brings it into the fleet, through `net.roster`.

Nothing here is on the path of a request, and what needs a library of its own is imported only when it is configured.
"""
