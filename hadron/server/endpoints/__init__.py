"""Serves `hadron.v1.Endpoints`: the streams of callers and of servers."""
