"""`ppd-gateway doctor`: looks at the pods, the table and this machine as a gateway with that configuration would.

Rule of this room: `look`, `listen` and `try_out` ask; `judge_pods`, `judge_fleet` and `here` make findings of it. What
is asked of a pod is what a gateway asks of it too, and every wait is bounded. Nothing stays behind at the pods but a
few cached blocks under a salt of their own.
"""
