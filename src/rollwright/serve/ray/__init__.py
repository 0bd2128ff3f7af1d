"""Workers on a Ray cluster: a supervisor actor per slice of a node, a driver process beside the broker that keeps them.

Ray places supervisors and starts them again; whatever workers say goes straight to the broker, over TCP. Only
`driver.py` and `supervisor.py` import ray.
"""
