"""Checks after each iteration that all ranks have the same parameters. Runs in a worker."""

import zlib
from collections.abc import Sequence

import torch

from mjfleet.rl.learner import Learner
from mjfleet.sim.deferred import Deferred


class OutOfStepError(RuntimeError):
    """The ranks no longer have the same parameters."""


@torch.inference_mode()
def checksum(learner: Learner) -> Deferred[int]:
    """Return a checksum of every bit of networks and common state, where there are several ranks.

    It is below 2^52, so that a float64 holds it exactly.
    """
    numbers = [x for x in learner.values("run") if not isinstance(x, torch.Tensor)]
    own = zlib.crc32(repr(numbers).encode())
    total = torch.zeros((), dtype=torch.int64, device=learner.device)
    for tensor in learner.replicated() if learner.is_distributed else ():
        kind = torch.uint8 if tensor.element_size() % 4 else torch.int32
        total = total * 31 + tensor.reshape(-1).view(kind).sum(dtype=torch.int64)
    return Deferred(total % 2**52, lambda found: int(found[0]) ^ own)


def check_replicas(iteration: int, checksums: Sequence[int]) -> None:
    """Compare the checksums of all ranks.

    Raises:
        OutOfStepError: they differ; names the ranks that do not have the majority's, or rank 0's
            where there is none.
    """
    common = max(checksums, key=lambda value: (checksums.count(value), value == checksums[0]))
    odd = [rank for rank, value in enumerate(checksums) if value != common]
    if odd:
        ranks = ", ".join(f"rank {rank}" for rank in odd)
        raise OutOfStepError(
            f"iteration {iteration}: parameters, normalisers or declared state of {ranks} differ "
            f"from those of the other{'' if len(checksums) == 2 else 's'}. Something on a rank "
            "changes them besides the common update, or its hardware is faulty."
        )
