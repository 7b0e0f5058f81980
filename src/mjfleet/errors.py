"""The one exception that means "the user asked for something that cannot be done"."""


class UserError(Exception):
    """A mistake in what the user typed or wrote; its text says what was wrong and what is allowed.

    The command line prints the text alone, without a traceback, and exits with code 2.
    """
