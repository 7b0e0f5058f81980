"""Running moments by which SAC's networks normalise what they observe. Runs in a worker."""

import torch

from mjfleet.rl.normalizers import add_samples
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac.mirrored_half import MirroredHalf
from mjfleet.rl.sac.networks import Critics, SquashedActor
from mjfleet.rl.sac.replay import Replay


@torch.no_grad()
def learn_moments(
    actor: SquashedActor,
    critics: tuple[Critics, Critics],
    replay: Replay,
    steps: int,
    mirrored: MirroredHalf | None,
    collectives: Collectives,
) -> None:
    """Add the newest steps of all ranks' replays, and their mirror images, to the networks'.

    The second of the critics, which has the moments of the first, is the target.
    """
    parts, (critic, _) = replay.newest(steps), critics
    for network in filter(lambda network: network.obs_groups, (actor, critic)):
        groups = [torch.cat([replay.observations[group][part] for part in parts])
                  for group in network.obs_groups]  # fmt: skip
        mirror = mirrored and mirrored.of_groups(network.obs_groups)
        rows = torch.cat(groups, dim=-1).flatten(0, 1)
        add_samples(network.obs_normalizer, rows, collectives, mirror)
    actions = torch.cat([replay.actions[part] for part in parts]).flatten(0, 1)
    mirror = mirrored and mirrored.actions
    add_samples(critic.action_normalizer, actions, collectives, mirror)
    normalizers = ((one.obs_normalizer, one.action_normalizer) for one in critics)
    learned, copied = ([x for part in pair for x in part.buffers()] for pair in normalizers)
    torch.ops.aten._foreach_copy_(copied, learned)
