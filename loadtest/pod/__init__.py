"""A vLLM pod that is not there: vLLM's HTTP API over the engine model of `loadtest.engine`.

- `simulated.SimulatedPod` is a pod in this process; `python -m loadtest.pod` one in its own.
- In: `body`, `fields`, `generation` turn JSON into a `Generation` or the error vLLM answers; `template` and
  `tokenizer` turn messages into token ids.
- Through: `run` takes a `Generation` through the engine; `answer` grows each answer's text.
- Out: `chat`, `completion`, `shapes` are vLLM's JSON; `reply` writes it, and carries out the ordered `faults`.
- Beside: `side` is the pod-to-pod channel, `event_publisher` the KV events, `info`, `render` and `metrics` the small
  endpoints, `control` and `journal` what tests look at, `probes` what is compared with a real pod.

Rule of this room: whatever a client can see (status, header, key order, null, event order, error text) is as the
real pod has it; where that is not so, it says so.
"""

from loadtest.pod.simulated import PodOptions, SimulatedPod

__all__ = ["PodOptions", "SimulatedPod"]
