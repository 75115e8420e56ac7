"""The models of the contract suite. A new model joins by one entry in `MODELS`.

An entry says what the suite cannot know: example parameters, how samples become data, and which changes of the data the
estimate has to follow.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from latensor.models.crowd import DawidSkene
from latensor.models.gamma_poisson import GammaPoisson
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.models.graphical import Graphical, latent_tree
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.latent_class import LatentClass
from latensor.models.mixed_membership import MixedMembership
from latensor.models.naive_bayes import NaiveBayes
from latensor.moments import Documents, Labels, Sequences, Table, Variables
from tests.models.contract_entry import Model, Symmetry, change


def row_weights(rng: np.random.Generator, num_rows: int, dtype: Any) -> np.ndarray:
    return rng.uniform(0.5, 1.0, num_rows).astype(dtype)


def distinct_columns(seed: int, d: int, k: int) -> np.ndarray:
    """Return probability columns `(d, k)` that are far from each other."""
    columns = np.random.default_rng(seed).dirichlet(np.full(d, 2.0), k).T
    for h in range(k):
        columns[h % d, h] += 2.0
    return columns / columns.sum(axis=0)


# Columns of a table in another order.
COLUMNS = np.array([3, 0, 5, 1, 6, 2, 4])


def reordered_columns(name: str) -> Symmetry:
    """Return the symmetry of tables whose parameters have a field `(d, k)`."""
    return Symmetry(
        "reordered columns",
        lambda data: change(data, x=lambda x: x[:, COLUMNS], mask=lambda mask: mask[:, COLUMNS]),
        lambda params: params._replace(**{name: getattr(params, name)[COLUMNS]}),
    )


# Tables of which a tenth is missing.
def table(rng: np.random.Generator, x: Any, **keywords: Any) -> Table:
    mask = rng.random(x.shape) < 0.9
    dtype = jnp.result_type(float) if jnp.issubdtype(x.dtype, jnp.integer) else x.dtype
    return Table(x, mask, row_weights(rng, len(x), dtype), **keywords)


# naive_bayes.
def documents(rng: np.random.Generator, x: Any) -> Documents:
    return Documents(x, row_weights=row_weights(rng, len(x), x.dtype))


NAIVE_BAYES = Model(
    "naive_bayes",
    NaiveBayes(np.array([0.5, 0.3, 0.2]), distinct_columns(0, 7, 3)),
    documents,
    weights=lambda params: params.weights,
    options={"length": (4, 8)},
    symmetries=(reordered_columns("word_probs"),),
)

# gaussian_mixture.
SCALE, SHIFT = 1e3, 50.0

GAUSSIAN_MIXTURE = Model(
    "gaussian_mixture",
    GaussianMixture(
        np.array([0.5, 0.3, 0.2]), 4 * np.random.default_rng(1).normal(size=(7, 3)), np.array([1.0, 0.5, 1.5])
    ),
    table,
    weights=lambda params: params.weights,
    symmetries=(
        reordered_columns("means"),
        Symmetry(
            "common scale",
            lambda data: change(data, x=lambda x: SCALE * x),
            lambda params: params._replace(means=SCALE * params.means, variance=SCALE**2 * params.variance),
            lambda data: -np.log(SCALE) * np.sum(data.mask, axis=1),
        ),
        Symmetry(
            "translation",
            lambda data: change(data, x=lambda x: x + SHIFT),
            lambda params: params._replace(means=params.means + SHIFT),
        ),
    ),
)

# gamma_poisson.
GAMMA_POISSON = Model(
    "gamma_poisson",
    GammaPoisson(distinct_columns(2, 7, 3), np.array([0.3, 0.2, 0.12]), 0.01),
    table,
    weights=lambda params: params.shapes,
    symmetries=(reordered_columns("topics"),),
    has_exact_likelihood=False,
)

# mixed_membership.
VARIABLES = Variables(("categorical",) * 8, (3, 2, 3, 3, 2, 3, 3, 3))
# Categories of all variables in another order: their rows among those of all variables.
CATEGORIES = [np.roll(np.arange(size), 1) for size in VARIABLES.sizes]
CATEGORY_ROWS = np.concatenate([start + new for start, new in zip(VARIABLES.offsets[:-1], CATEGORIES, strict=True)])


def relabelled_codes(x: Any) -> Any:
    # Category `new[i]` becomes `i`.
    return np.stack([np.argsort(new)[x[:, j]] for j, new in enumerate(CATEGORIES)], axis=1)


RELABELLED_CATEGORIES = Symmetry(
    "relabelled categories",
    lambda data: change(data, x=relabelled_codes),
    lambda params: params._replace(tables=params.tables[CATEGORY_ROWS]),
)

MIXED_MEMBERSHIP = Model(
    "mixed_membership",
    MixedMembership(
        np.array([0.3, 0.2, 0.1]),
        np.concatenate([distinct_columns(10 + j, size, 3) for j, size in enumerate(VARIABLES.sizes)]),
    ),
    lambda rng, x: table(rng, x, variables=VARIABLES),
    weights=lambda params: params.concentration,
    fit_tolerance=1e-3,
    options={"variables": VARIABLES, "concentration": 0.6, "anchors": ((0, 1), (2, 3), (4, 5))},
    symmetries=(RELABELLED_CATEGORIES,),
    has_exact_likelihood=False,
)

# hidden_markov.
SYMBOLS = np.array([4, 2, 0, 5, 1, 3])
TRANSITION = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])


def sequences(rng: np.random.Generator, x: Any, num_symbols: int | None = None) -> Sequences:
    mask = rng.random(x.shape[:2]) < 0.95
    lengths = rng.integers(x.shape[1] // 2, x.shape[1] + 1, len(x))
    dtype = x.dtype if num_symbols is None else jnp.result_type(float)
    return Sequences(x, lengths, mask, row_weights(rng, len(x), dtype), num_symbols)


def num_observed(data: Sequences) -> np.ndarray:
    """Return the number of observations of each sequence."""
    return np.sum(data.observed_on_host(), axis=1)


def occupation(params: HiddenMarkov) -> Any:
    """Return the share of time in each state in the long run."""
    return np.linalg.matrix_power(np.asarray(params.transition), 200)[0]


HIDDEN_MARKOV = Model(
    "hidden_markov",
    HiddenMarkov(np.array([0.5, 0.3, 0.2]), TRANSITION, distinct_columns(3, 6, 3)),
    lambda rng, x: sequences(rng, x, 6),
    weights=occupation,
    options={"length": 20},
    symmetries=(
        Symmetry(
            "relabelled symbols",
            lambda data: change(data, x=lambda x: np.argsort(SYMBOLS)[x]),
            lambda params: params._replace(emission=params.emission[SYMBOLS]),
        ),
    ),
    # EM ends on a flat top of the likelihood, 5e-12 nats apart: at which step is a matter of rounding. In float32 it is
    # the 56th or the 64th, by how the compiler divides the program, and transitions end 4e-3 apart.
    compiled_tolerance=1e-6,
    single_tolerance=1e-2,
    variant="symbols",
)

# graphical: two hidden variables, one the parent of the other.
GRAPH = latent_tree({"h1": ["h2"]}, {"h1": ["a", "b", "c"], "h2": ["d", "e"]}, num_states=3, num_values=4)
VALUES = np.array([2, 0, 3, 1])

GRAPHICAL = Model(
    "graphical",
    Graphical(
        GRAPH,
        (
            np.array([0.5, 0.3, 0.2]),
            np.array([[0.8, 0.2, 0.1], [0.1, 0.7, 0.2], [0.1, 0.1, 0.7]]),
            *(distinct_columns(20 + leaf, 4, 3) for leaf in range(5)),
        ),
    ),
    table,
    weights=lambda params: params.tables[0],
    num_rows=3_000,
    symmetries=(
        Symmetry(
            "relabelled values",
            lambda data: change(data, x=lambda x: np.argsort(VALUES)[x]),
            lambda params: params._replace(
                tables=(*params.tables[:2], *(table[VALUES] for table in params.tables[2:]))
            ),
        ),
    ),
    num_components=GRAPH,
    order={"h1": np.array([2, 0, 1])},
    hidden=lambda hidden: hidden[:, 0],
    node="h1",
    other_functions=("chain", "directed", "draw", "grid", "latent_tree", "plan", "undirected"),
)

# latent_class.
LATENT_CLASS = Model(
    "latent_class",
    LatentClass(
        np.array([0.5, 0.3, 0.2]),
        np.concatenate([distinct_columns(30 + j, size, 3) for j, size in enumerate(VARIABLES.sizes)]),
    ),
    lambda rng, x: table(rng, x, variables=VARIABLES),
    weights=lambda params: params.weights,
    num_rows=600,
    options={"variables": VARIABLES},
    symmetries=(RELABELLED_CATEGORIES,),
)

# crowd: hidden classes have the names of labels; those of the example are in order all the same.
LABELS = np.array([2, 0, 1])

CROWD = Model(
    "crowd",
    DawidSkene(
        np.array([0.5, 0.3, 0.2]), np.stack([0.6 * distinct_columns(40 + j, 3, 3) + 0.4 * np.eye(3) for j in range(9)])
    ),
    lambda rng, x: Labels(x, 600, 9, row_weights(rng, 600, jnp.result_type(float))),
    weights=lambda params: params.prior,
    num_rows=600,
    # Maximum likelihood: with a prior it is the posterior that never falls.
    options={"labels_per_item": 5, "pseudo_count": 0.0, "class_prior": "estimated", "pooling": 0.0, "method": "power"},
    symmetries=(
        Symmetry(
            "relabelled classes",
            lambda data: change(data, x=lambda x: np.stack([x[:, 0], x[:, 1], np.argsort(LABELS)[x[:, 2]]], axis=1)),
            lambda params: DawidSkene(params.prior[LABELS], params.confusion[:, LABELS][:, :, LABELS]),
            posterior=lambda rows: rows[:, LABELS],
        ),
    ),
    other_functions=("majority_vote", "read_labels"),
)

MODELS = (
    NAIVE_BAYES,
    GAUSSIAN_MIXTURE,
    GAMMA_POISSON,
    MIXED_MEMBERSHIP,
    HIDDEN_MARKOV,
    GRAPHICAL,
    LATENT_CLASS,
    CROWD,
)
