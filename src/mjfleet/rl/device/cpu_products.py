"""Products of matrices on a CPU, by the library that is faster there. Runs in a worker."""

from functools import cache

import torch

from mjfleet.utils.hardware_names import cpu_name


@cache
def is_onednn_faster() -> bool:
    """Return whether oneDNN, which is part of torch, is faster than MKL, by which torch multiplies.

    MKL keeps to AVX2 on AMD's CPUs, and oneDNN does not: with AVX-512 it takes half of the time.
    """
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_avx512 and cpu_name().startswith("AMD") and torch.backends.mkldnn.is_available()


def linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `rows @ weight.T + bias` `(rows, outputs)`, without a gradient.

    Args:
        rows: `(rows, inputs)`; it may be a transposed view, as may be the weight.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
    """
    if rows.dtype == torch.float32 and is_onednn_faster():
        # torch's compiler calls this, too. Linear layers themselves have no such choice.
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return torch.nn.functional.linear(rows, weight, bias)
