"""The command line: `stablelog --help`."""

import time

# Time of the monotonic clock at which the command began to import its modules. The timeout of a command counts from it.
STARTED_S = time.monotonic()
