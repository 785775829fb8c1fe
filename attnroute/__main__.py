"""`python -m attnroute`."""

import sys

from attnroute.cli.main import main

sys.exit(main())
