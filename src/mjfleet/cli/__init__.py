"""The command line: parse, print, exit code; nothing else. Runs in the launching process."""

import atexit
import gc

# Last of all, what a command holds goes back to the system as it is: to look for cycles in all of
# torch before would take a second.
atexit.register(gc.freeze)
