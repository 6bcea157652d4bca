"""From a seed to an outcome.

run              a world, what is done in it, and what came out
shapes           what a seed's world is like
small_limits     limits that a short run can reach
workload         the random run in one replica set
region_workload  the random run over several
region_run       what every run over several does before and after
region_clients   who is at work over several
debts            what nodes still owe when all is healed
rare_paths       which rare paths of the product were reached
"""
