"""`mjfleet.TrainingError`: what a training run in other processes has failed of."""

from typing import Any

from mjfleet.worker.failure_record import Failure


class TrainingError(Exception):
    """Training has failed. The text is what the command prints.

    Attributes:
        run: the `Run`, which can be resumed from its newest checkpoint.
        rank: the worker that failed first; None: no worker has recorded one.
        host: its host.
        phase: what it was doing: `build`, `collect`, `learn`, `save`, ...
        iteration: the iteration it was in, counted from 1; 0 before the first.
        kind: the class of its exception; or Killed, Exited, Hang, Lost.
        cause: that exception's message.
        traceback: of that exception, as text.
    """

    def __init__(self, run: Any, failure: Failure | None, otherwise: str) -> None:
        super().__init__(run, failure, otherwise)  # From which it is made again by pickle.
        self.run = run
        self.rank = failure and failure.rank
        self.host = failure and failure.host
        self.phase = failure and failure.phase
        self.iteration = failure and failure.iteration
        self.kind = failure and failure.kind
        self.cause = failure.message if failure else otherwise
        self.traceback = failure.traceback if failure else ""
        self._text = failure.report if failure else otherwise

    def __str__(self) -> str:
        return self._text
