"""Fits a profile of `loadtest.engine` to measurements, and says how well it predicts others.

Two sources. Real vLLM pods: `sweeps` asks them designed questions over HTTP (`stream`), `pods` turns the answers into a
profile by least squares (`regression`) and `check` predicts a workload that the fit has not seen. The paper's grid:
`grid` reads it, `benchmark` plays the paper's own benchmark on the engine under the virtual clock, `paper` fits the
stated parameters on a stated part and predicts the rest, `shared_prefix` explains the interference figure.
`profile_file` writes profiles, `report` writes docs/paper/engine.md, `published` lists what set parameters and what
did not.
"""
