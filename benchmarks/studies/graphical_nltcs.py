"""Disability of the elderly (NLTCS) as a latent tree: held-out likelihood against mixed membership and latent classes.

16,181 people answered 16 yes-or-no questions; 3,236 others are held out, 2,157 are kept for validation. The files do
not name the items. We take their order to be the reverse of the usual one (Erosheva, Fienberg, Joutard 2007), as their
frequencies suggest. From what the items ask, before any fit, we draw trees with a hidden root and causes below it:

    indoors     eating, bed, inside, dressing, bathing, toilet     (activities of daily living)
    outdoors    heavy housework, groceries, outside, travelling
    household   light housework, laundry, cooking                  (in the tree of three causes, these are one)
    mind        money, medicine, telephoning

Hidden variables have 2 values in both trees, and 3 in the tree of three causes: items have two values each, so a cause
with 3 values needs views of at least two items, of which household and mind have too few. Parameters are counted as
free probabilities; k latent classes have 17 k − 1, mixed membership has 17 k.

Of a tree, the better of `fit` and `refine` from there for the validation people is reported. For comparison, EM from
ten random starts, the likeliest on the training people. Mixed membership and latent classes with k = 2 to 6 are those
of `mixed_membership_nltcs`. Trees are fitted in double precision.

Claim (ours): each tree gives held-out people a higher likelihood than all latent-class and mixed-membership models with
as many parameters or fewer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks import nltcs
from benchmarks.graphical_models import draw_params
from benchmarks.nltcs import Answers
from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graphical

# fmt: off
_INDOORS = ("eating", "bed", "inside", "dressing", "bathing", "toilet")
_OUTDOORS = ("heavy housework", "groceries", "outside", "travelling")
_HOUSEHOLD, _MIND = ("light housework", "laundry", "cooking"), ("money", "medicine", "telephoning")
# fmt: on
_THREE = {"indoors": _INDOORS, "outdoors": _OUTDOORS, "household and mind": (*_HOUSEHOLD, *_MIND)}
_FOUR = {"indoors": _INDOORS, "outdoors": _OUTDOORS, "household": _HOUSEHOLD, "mind": _MIND}
_TREES = {
    "tree, three binary causes": (_THREE, 2),
    "tree, four binary causes": (_FOUR, 2),
    "tree, three causes of 3": (_THREE, 3),
}
_STARTS, _MAX_ITERS = 10, 1_000
_LOOKS = {"tree": "green", "mixed membership": "blue", "latent class": "grey"}


class _Model(NamedTuple):
    """One estimate."""

    name: str
    num_parameters: int
    value: float
    """Mean log-likelihood of held-out people."""
    by: str = ""
    """Which of several estimates it is."""
    others: tuple[Any, ...] = ("", "", "", "")
    """Of a tree: held-out values of `fit`, of `refine` from there, of EM from random starts; the status of `fit`."""


def _tree(name: str, answers: Answers) -> _Model:
    causes, k = _TREES[name]
    graph = graphical.latent_tree({"root": list(causes)}, causes, num_states=k, num_values=2)
    columns = [nltcs.ITEMS.index(item) for item in graph.observed]
    train, valid, test = (part[:, columns] for part in answers)

    def refine(params: Graphical) -> Any:
        return graphical.refine(params, train, max_iters=_MAX_ITERS)

    def score(params: Graphical, x: np.ndarray) -> float:
        return float(jnp.mean(graphical.log_likelihood(params, x)))

    fit = graphical.fit(jax.random.key(k), train, graph)
    estimates = {"fit": fit.params, "refine": refine(fit.params).params}
    by = max(estimates, key=lambda way: score(estimates[way], valid))
    rng = np.random.default_rng(k)
    starts = [refine(draw_params(rng, graph, structure=0.0)) for _ in range(_STARTS)]
    best = max(starts, key=lambda end: float(end.log_likelihood)).params
    num_parameters = graphical.num_parameters(fit.params)
    values = [score(params, test) for params in (fit.params, estimates["refine"], best)]
    status = Status(int(fit.status)).name
    return _Model(name, num_parameters, score(estimates[by], test), by, (*values, status))


def run(options: Options) -> Report:
    """Fit the trees and the models to compare them with."""
    answers = nltcs.read_nltcs(options)
    models: list[_Model] = []
    with double_precision():
        for name in tqdm(list(_TREES)[: 1 if options.quick else None], desc="trees"):
            models.append(_tree(name, answers))
    trees = list(models)
    for k in tqdm((2,) if options.quick else (2, 3, 4, 5, 6), desc="components"):
        key_fit, key_score, key_class = jax.random.split(jax.random.fold_in(jax.random.key(8), k), 3)
        classes = nltcs.latent_class_score(key_class, answers, k)
        membership = nltcs.fit_membership(key_fit, key_score, answers, k)
        size = nltcs.NUM_ITEMS + 1
        models.append(_Model(f"latent class, k = {k}", size * k - 1, classes))
        models.append(_Model(f"mixed membership, k = {k}", size * k, membership.value, membership.chosen))
    rows = [[model.name, model.num_parameters, model.value, model.by, *model.others] for model in models]
    claims = [_claim(tree, models[len(trees) :]) for tree in trees]
    data = {"people": len(answers.train), "held_out": len(answers.test)}
    columns = [
        "model",
        "parameters",
        "held out",
        "by",
        "fit",
        "refine",
        f"EM, {_STARTS} random starts",
        "status of fit",
    ]
    return Report(columns, rows, claims, data, _picture(models))


def _claim(tree: _Model, models: list[_Model]) -> Claim:
    smaller = [model for model in models if model.num_parameters <= tree.num_parameters]
    best = max(smaller, key=lambda model: model.value)
    return Claim(
        f"{tree.name} (ours): likelier than all models with as many parameters ({tree.num_parameters}) or fewer",
        f"{tree.value:.3f} against {best.value:.3f} of {best.name} ({best.num_parameters}); status {tree.others[-1]}",
        tree.value > best.value,
    )


def _picture(models: list[_Model]) -> Any:
    made, (axis,) = figure(1, (4.6, 3.4))
    for kind, colour in _LOOKS.items():
        chosen = [model for model in models if model.name.startswith(kind)]
        style = {"linestyle": "none" if kind == "tree" else "-", "color": COLOURS[colour], "marker": "o"}
        axis.plot([model.num_parameters for model in chosen], [model.value for model in chosen], label=kind, **style)
        for model in chosen if kind == "tree" else ():
            label = model.name.removeprefix("tree, ")
            place = (model.num_parameters, model.value)
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "fontsize": 7,
                "ha": "right",
                "color": COLOURS[colour],
            }
            axis.annotate(label, place, (-6, -2), **look)
    axis.set(xlabel="parameters", xlim=(10, None), ylabel="held-out log-likelihood per person", title="NLTCS")
    axis.legend(frameon=False)
    return made
