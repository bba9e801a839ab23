import sys

from attnflow.cli import main

sys.exit(main())
