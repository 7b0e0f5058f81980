"""Exceptions whose text is all that a person needs."""


class UserError(Exception):
    """A mistake in what the user typed or wrote; its text says what was wrong and what is allowed.

    The command line prints the text alone, without a traceback, and exits with code 2.
    """


class WorkerError(Exception):
    """A worker, which is another process, has failed; its text holds that worker's traceback."""
