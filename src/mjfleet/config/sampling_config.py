"""Where in their clips episodes of robots begin that follow motions. Imports nothing heavy."""

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
    """Adaptive: the weight of a step's failures in their exponential mean."""
    floor: Positive = 0.1
    """Adaptive: what is added to the failures of all seconds together."""
    kernel: Annotated[int, between(1, 1000)] = 1
    """Adaptive: seconds before a failure in which episodes begin more often, too."""
    decay: Fraction = 0.8
    """Adaptive: how much less so for each second."""
