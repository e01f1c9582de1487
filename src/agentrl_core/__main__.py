"""`python -m agentrl_core` is the command line."""

import sys

from agentrl_core.cli import main

sys.exit(main())
