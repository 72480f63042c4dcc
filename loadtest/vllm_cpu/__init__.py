"""Real stock vLLM pods on CPU: the reference every claim about the gateway is checked against.

- `environment` builds a virtual environment and a tiny model, once, outside the repository.
- `recipe` lists the build steps; `requirements`, `alias` and `model_maker` run inside that environment.
- `cluster` starts, kills, restarts and stops pods (`spec` says with which command line).
- `state` remembers started pods between two command lines; `__main__` is that command line.

Everything imported by the project's own interpreter uses the standard library only: this room is
entered before anything has been installed.
"""
