"""Pipelines: what is asked and said of them, and their stages.

* `methods`: what `Client` has of all this.
* `homes`: on which replica set each lives.
* `calls`: progress, instances, retries, completions and failures.
* `stage_run`: the call that hands ready invocations to this client.
"""
