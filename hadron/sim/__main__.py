"""`python -m hadron.sim`: run seeds, replay one, measure what they cover."""

import sys

from hadron.sim.command.main import main

sys.exit(main())
