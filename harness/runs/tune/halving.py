"""Which configurations are measured again: successive halving, as Optuna has it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from harness.errors import UsageError


def optuna() -> ModuleType:
    """The package, which is an extra. Raises UsageError where it is not installed."""
    try:
        package = import_module("optuna")
    except ImportError:
        raise UsageError("bench tune needs Optuna", "pip install 'rosebench[tune]'") from None
    package.logging.set_verbosity(package.logging.WARNING)
    return package


class Halving:
    """Asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning,
    MLSys 2020) with repeats as the resource.

    A configuration is judged at 1, r, r² … repeats, against those that have been judged there before, and
    goes on if it is among the best of one in r. The best so far is never dropped.

    Args:
        count: Configurations, which are numbered from 0.
        reduction: r.
    """

    def __init__(self, count: int, reduction: int) -> None:
        package = optuna()
        pruner = package.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=reduction)
        study = package.create_study(pruner=pruner)
        self._trials = [study.ask() for _ in range(count)]

    def goes_on(self, number: int, repeats: int, cost: float) -> bool:
        """Whether a configuration is measured again after so many repeats. A lower cost is better."""
        trial = self._trials[number]
        trial.report(cost, step=repeats)
        return not trial.should_prune()
