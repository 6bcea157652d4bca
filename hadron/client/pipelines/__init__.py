"""Pipelines: what is asked and said of them, and their stages.

* `calls`: progress, instances, retries, completions and failures.
* `stage_run`: the call that hands ready invocations to this client.
"""
