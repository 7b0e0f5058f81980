"""The page of a sweep."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import html5lib
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from mjfleet.sweep.results import write_sweep_page

SPACE = {
    "agent.actor.hidden-dims": CategoricalDistribution(("[64, 64]", "[128, 128]")),
    "agent.algorithm.learning-rate": FloatDistribution(1e-4, 1e-2, log=True),
    "agent.num-steps-per-env": IntDistribution(16, 64),
}


def test_axes_have_the_names_of_categories_and_the_whole_range(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    for dims, rate, steps in (("[64, 64]", 1e-3, 32), ("[128, 128]", 2e-3, 48)):
        params = dict(zip(SPACE, (dims, rate, steps), strict=True))
        study.add_trial(
            optuna.create_trial(value=float(steps), params=params, distributions={**SPACE})
        )
    typed = dict.fromkeys(SPACE, "")
    definition = SimpleNamespace(
        task="t",
        space=SPACE,
        typed=typed,
        metric="eval/return",
        is_greater_better=True,
        defaults={},
    )
    sweep: Any = SimpleNamespace(
        definition=definition, optuna=study, trials=study.get_trials, best=lambda: study.best_trial
    )
    text = write_sweep_page(sweep, tmp_path).read_text()
    html5lib.HTMLParser(strict=True).parse(text)
    document = html5lib.parse(text, namespaceHTMLElements=False)
    axes = {chart.get("data-along"): chart for chart in document.iter("div")}
    names = ("low", "high", "log", "choices")
    found = {name: [axes[name].get(f"data-{part}") for part in names] for name in SPACE}
    assert found == {
        "agent.actor.hidden-dims": ["-0.5", "1.5", None, '["[64, 64]", "[128, 128]"]'],
        "agent.algorithm.learning-rate": ["0.0001", "0.01", "1", None],
        "agent.num-steps-per-env": ["16", "64", None, None],
    }
