"""The command line: parse, print, exit code; nothing else. Runs in the launching process."""
