"""Experiments in virtual time: what would this policy, split, network and traffic do? Nothing here touches a GPU.

- `workloads`, `datasets`, `trace_files`: conversations, as numbers of tokens; `arrivals`: when they begin; `scenario`:
  what happens meanwhile (a pod gets slow, dies, comes back; the rate or the mix changes).
- `assignments`: which pods there are. `fleet`: the shipped `gateway.core` in front of them, with a virtual clock.
  `client`: plays the conversations. `run`: one experiment; `sweep`: many, on several cores.
- `outcomes`: what became of every turn; `statistics`: intervals, paired differences.
- `report`, `plots`: Markdown and PNG. `paper`: the published numbers beside ours. `advise`: a recommendation.

Data goes one way: a `Spec` becomes `Turns`, those a `Row`, rows a report.

Rule of this room: the policy, the placement, the residency and the fallbacks are those of `gateway.core`, unchanged.
What is random has a seed, and the seeds of the traffic do not depend on the policy, so that policies meet the same
traffic.
"""
