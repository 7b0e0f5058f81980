"""The exceptions that a user meets."""


class UserError(Exception):
    """A mistake in what the user typed or wrote; the text says what is wrong and what to write."""

    exit_code = 2


class RepeatedError(UserError):
    """A mistake of the user's that another worker has found, and prints."""


class RankError(UserError):
    """A mistake in the variables that give this worker its rank; each worker prints its own."""


class WorkerError(Exception):
    """A worker process has failed; the text holds its traceback."""


class Stopped(BaseException):
    """A signal arrived where nothing needs to be finished first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
