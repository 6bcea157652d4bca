"""`python -m hadron.cli` is the `hadron` command: how local clusters start their nodes."""

import sys

from hadron.cli import main

sys.exit(main())
