"""Real stock vLLM pods on CPU: the reference every claim about the gateway is checked against.

- `environment` builds a virtual environment and a tiny model, once, outside the repository.
- `recipe` lists the build steps; `requirements`, `nixl_delay`, `alias`, `model_maker` and `self_check` run
  inside that environment. vLLM itself is as published; `nixl_delay` says what is not.
- `cluster` starts, kills, restarts and stops pods (`spec` says with which command line).
- `state` remembers started pods between two command lines; `__main__` is that command line.

Everything imported by the project's own interpreter uses the standard library only: this room is
entered before anything has been installed.
"""
