"""What goes wrong in random worlds, by a seed.

nemesis  single faults, and the way back to health
plots    faults in several acts
regions  faults of whole replica sets
"""
