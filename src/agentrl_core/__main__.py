"""`python -m agentrl_core` runs the command line."""

import sys

from agentrl_core.cli import main

sys.exit(main())
