"""Pipelines on the leader: consume triggers, hand ready stages to runners, log what became of them."""
