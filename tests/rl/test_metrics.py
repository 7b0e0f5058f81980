"""Means over episodes: the newest ones, enough of them, and nothing where none has ended."""

from mjfleet.env import EpisodeStatistics
from mjfleet.rl.metrics import EpisodeWindow


def ended(episodes: int, mean_return: float) -> EpisodeStatistics:
    returns = episodes * mean_return
    return EpisodeStatistics(episodes, returns, episodes * 10.0, {"alive": returns}, 0.0)


def test_there_is_no_mean_before_an_episode_has_ended() -> None:
    window = EpisodeWindow(100)
    window.add(ended(0, 0.0))
    assert window.means(("alive",)) == {"return": None, "length": None, "reward/alive": None}


def test_the_mean_is_over_the_newest_iterations_that_hold_enough_episodes() -> None:
    window = EpisodeWindow(100)
    for episodes, mean_return in ((60, 1.0), (60, 2.0), (0, 0.0), (50, 4.0)):
        window.add(ended(episodes, mean_return))
    means = window.means(("alive",))
    assert means["return"] == means["reward/alive"] == (60 * 2.0 + 50 * 4.0) / 110
    assert means["length"] == 10.0


def test_one_iteration_with_enough_episodes_is_enough() -> None:
    window = EpisodeWindow(100)
    window.add(ended(500, 1.0))
    window.add(ended(100, 3.0))
    assert window.means(("alive",))["return"] == 3.0
