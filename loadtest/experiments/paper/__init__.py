"""The paper's numbers beside ours: `python -m loadtest.experiments.paper` (`make paper`).

Each section says which experiments it needs (`specs`) and what they come to (`evaluate`); `claims` holds what was
published, and `document` writes docs/paper/README.md.

Rule of this room: a published number stands in claims.toml and nowhere else; ours comes from runs; the class (within
10 %, same direction, not reproduced) is computed. Only the reasons are words of ours.
"""
