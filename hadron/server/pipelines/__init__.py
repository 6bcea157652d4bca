"""What a leader serves of pipelines: invocations for runners, instances, backfills, signals."""
