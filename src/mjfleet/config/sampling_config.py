"""At which frames of their clips episodes begin. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mjfleet.config.validation import Checked, Fraction, Positive, Rule, between


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Checked, flags="env.sampling."):
    """At which frames of clips episodes begin. `Motion` takes it.

    Numbers are those of BeyondMimic (Liao et al. 2025, arXiv:2508.08241).
    """

    kind: Literal["adaptive", "uniform", "start"] = "adaptive"
    """`adaptive`: where episodes fail; `uniform`: anywhere; `start`: at a clip's first frame."""
    alpha: Annotated[float, Rule(lambda v: 0 < v < 1, "above 0 and below 1")] = 0.001
    """Adaptive: the weight of a step's failures in the exponential mean."""
    floor: Positive = 0.1
    """Adaptive: constant added to the failures, divided among all seconds."""
    kernel: Annotated[int, between(1, 1000)] = 1
    """Adaptive: length of the window, in seconds up to a failure, where more episodes begin."""
    decay: Fraction = 0.8
    """Adaptive: factor of the window's weights for each second further back."""
