"""`python -m hadron` is the `hadron` command."""

import sys

from hadron.cli import main

sys.exit(main())
