"""Pipelines on the leader: triggers become instances, ready stages go to runners, and what became
of them is logged."""
