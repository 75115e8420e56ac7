"""The result of a choice between numbers of components: as a table, as text and as a picture."""

from typing import Any, NamedTuple

from latensor.decompose import Status
from latensor.inference._splits import Mean
from latensor.models.results import CLEAR

_COLUMNS = ("k", "status of fit", "value", "noise", "score", "held out", "s.e.", "below best", "s.e.", "AIC", "BIC")


class Candidate(NamedTuple):
    """One number of components. Likelihoods are per row, or per observation of sequences."""

    num_components: int
    status: Status
    """Of `fit` to all rows."""
    value: float | None
    """The eigenvalue or singular value of the second moment in the last place that the model needs; `None` where it
    needs none, as for one centred component."""
    noise: float | None
    """The size that such a value has from sampling noise alone."""
    score: float | None
    """How far that direction of half of the rows is above zero in the other half, in standard errors: standard normal
    where there are fewer components. `None` where the model has no such test."""
    held_out: Mean
    """Mean log-likelihood of the rows that were held out, and its standard error."""
    shortfall: Mean
    """How much that is below the best candidate's, and the standard error of the paired difference."""
    num_parameters: int
    aic: float
    bic: float
    params: Any
    """Estimated from all rows."""


class RankSelection(NamedTuple):
    """A choice between numbers of components, and what it is based on."""

    num_components: int
    """The smallest candidate whose held-out log-likelihood is within one standard error of the best one's."""
    candidates: tuple[Candidate, ...]
    """In increasing order of their number of components."""

    @property
    def chosen(self) -> Candidate:
        """The candidate that was chosen."""
        return next(each for each in self.candidates if each.num_components == self.num_components)

    @property
    def best(self) -> Candidate:
        """The candidate whose held-out log-likelihood is the highest."""
        return max(self.candidates, key=lambda each: (each.held_out.value == each.held_out.value, each.held_out.value))

    @property
    def by_spectrum(self) -> int | None:
        """The last candidate before the first whose direction is not clear of noise; `None` if none is tested."""
        if all(each.score is None for each in self.candidates):
            return None
        clear = None
        for each in self.candidates:
            if each.score is not None and each.score <= CLEAR:
                break
            clear = each.num_components
        return clear

    @property
    def message(self) -> str:
        """The table as text, the chosen candidate marked, and what other criteria would choose."""
        lines = [_COLUMNS, *(_cells(each) for each in self.candidates)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
        marks = [" ", *("*" if each is self.chosen else " " for each in self.candidates)]
        table = [
            f"{mark} " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for mark, line in zip(marks, lines, strict=True)
        ]
        by_aic, by_bic = (min(self.candidates, key=key).num_components for key in (_aic, _bic))
        spectrum = "" if self.by_spectrum is None else f", the spectrum k = {self.by_spectrum}"
        rule = (
            f"* k = {self.num_components}: the smallest within one standard error of the best on held-out rows, "
            f"k = {self.best.num_components}. AIC would choose k = {by_aic}, BIC k = {by_bic}{spectrum}."
        )
        return "\n".join([*table, rule])


def _aic(candidate: Candidate) -> float:
    return candidate.aic


def _bic(candidate: Candidate) -> float:
    return candidate.bic


def _cells(candidate: Candidate) -> tuple[str, ...]:
    def short(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    held_out, below = candidate.held_out, candidate.shortfall
    return (
        str(candidate.num_components),
        candidate.status.name,
        short(candidate.value),
        short(candidate.noise),
        "" if candidate.score is None else f"{candidate.score:.1f}",
        f"{held_out.value:.4f}",
        f"{held_out.error:.4f}",
        f"{below.value:.4f}",
        f"{below.error:.4f}",
        f"{candidate.aic:,.0f}",
        f"{candidate.bic:,.0f}",
    )


def scree(selection: RankSelection, axes: Any = None) -> Any:
    """Draw the spectrum with its noise, and how far candidates are below the best on held-out rows.

    Args:
      selection: the result of `select_rank`.
      axes: two axes of matplotlib, for the spectrum and for the likelihood; by default those of a new figure.

    Returns:
      The two axes. Bars are the noise of each value, and standard errors of paired differences. Needs matplotlib.

    """
    if not isinstance(selection, RankSelection):
        raise ValueError(f"selection: expected the result of select_rank; got {type(selection).__name__}")
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")[1]
    left, right = axes
    style = {"marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1.2}
    shown = [each for each in selection.candidates if each.value is not None and each.noise is not None]
    if shown:
        places = [each.num_components for each in shown]
        left.errorbar(places, [each.value for each in shown], [each.noise for each in shown], **style)
        left.axhline(0, color="0.7", linewidth=0.8)
    left.set(xlabel="components", ylabel="last value of the second moment", title="spectrum, with its noise")
    places = [each.num_components for each in selection.candidates]
    right.errorbar(
        places,
        [-each.shortfall.value for each in selection.candidates],
        [each.shortfall.error for each in selection.candidates],
        **style,
    )
    right.set(xlabel="components", ylabel="log-likelihood below the best", title="rows held out")
    for axis in (left, right):
        axis.axvline(selection.num_components, color="0.5", linestyle="--", linewidth=0.8)
        axis.set_xticks(places)
    return left, right
