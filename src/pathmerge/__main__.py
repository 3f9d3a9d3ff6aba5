"""`python -m pathmerge`, the same as the command."""

import sys

from pathmerge.cli import main

sys.exit(main())
