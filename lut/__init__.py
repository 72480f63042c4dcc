"""The lookup table: what each route costs on this cluster, measured offline.

- **raw** (`raw`): what a profiler writes, one line a cell, arm and repeat. `paper` reads the paper authors' results
  into the same lines.
- **table set** (`build` with `fill`, written and read by `tableset` with `manifest`): a directory with a manifest and
  one mapped NumPy file per node assignment π.
- **cell** (`cell`): what the table knows near one request; `score` turns a cell into S.
- `show`, `diff`, `plot` and `cli` are for people.

Data goes one way: raw → build → table set → cell → score. Seconds and tokens everywhere. Only `lut.table` is meant to
be imported by `gateway.core`; nothing here imports gateway.
"""
