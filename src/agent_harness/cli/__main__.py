"""`python -m agent_harness.cli`: the same as `agent-harness`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
