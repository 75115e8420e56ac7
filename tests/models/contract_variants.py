"""Other kinds of data of the models of the contract suite, for which only the invariances are tested."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.latent_class import LatentClass
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import Documents, Variables
from tests.models.contract_entry import Model, Symmetry, change
from tests.models.contract_models import (
    COLUMNS,
    NAIVE_BAYES,
    SCALE,
    SHIFT,
    TRANSITION,
    distinct_columns,
    num_observed,
    occupation,
    row_weights,
    sequences,
    table,
)

# Word ids, below zero beyond the end of a document.
NAIVE_BAYES_IDS = Model(
    "naive_bayes",
    NAIVE_BAYES.params,
    lambda rng, x: Documents(x, 7, row_weights(rng, len(x), jnp.result_type(float))),
    weights=lambda params: params.weights,
    options={"length": (4, 8), "word_ids": True},
    symmetries=(
        Symmetry(
            "relabelled words",
            lambda data: change(data, x=lambda x: np.where(x < 0, -1, np.argsort(COLUMNS)[x])),
            lambda params: params._replace(word_probs=params.word_probs[COLUMNS]),
        ),
    ),
    variant="ids",
)

# Real vectors.
DIMENSIONS = np.array([2, 0, 1])


def change_vectors(params: HiddenMarkov, scale: float, shift: float) -> HiddenMarkov:
    return params._replace(emission=scale * params.emission + shift, variance=scale**2 * params.variance)


HIDDEN_MARKOV_VECTORS = Model(
    "hidden_markov",
    HiddenMarkov(
        np.array([0.5, 0.3, 0.2]),
        TRANSITION,
        3 * np.random.default_rng(4).normal(size=(3, 3)),
        np.random.default_rng(5).uniform(0.5, 1.5, (3, 3)),
    ),
    sequences,
    weights=occupation,
    options={"length": 20},
    symmetries=(
        Symmetry(
            "reordered dimensions",
            lambda data: change(data, x=lambda x: x[..., DIMENSIONS]),
            lambda params: params._replace(emission=params.emission[DIMENSIONS], variance=params.variance[DIMENSIONS]),
        ),
        Symmetry(
            "common scale",
            lambda data: change(data, x=lambda x: SCALE * x),
            lambda params: change_vectors(params, SCALE, 0.0),
            lambda data: -3 * np.log(SCALE) * num_observed(data),
        ),
        Symmetry(
            "translation",
            lambda data: change(data, x=lambda x: x + SHIFT),
            lambda params: change_vectors(params, 1.0, SHIFT),
        ),
    ),
    variant="vectors",
)

# Categorical and real variables in turn.
MIXED = Variables(("categorical", "real") * 4, (3, 1) * 4)
MIXED_SCALES, MIXED_SHIFTS = np.array([1e3, 2.0, 0.1, 5.0]), np.array([50.0, -3.0, 0.0, 7.0])


def change_reals(scales: np.ndarray, shifts: np.ndarray) -> dict[str, Any]:
    """Return how data and parameters change where the real variables get other units and origins."""

    def params(params: Any) -> Any:
        rows = MIXED.offsets[:-1][MIXED.real]
        tables = np.array(params.tables)
        tables[rows] = scales[:, None] * tables[rows] + shifts[:, None]
        return params._replace(tables=jnp.asarray(tables), variances=(scales**2 * np.asarray(params.variances).T).T)

    def values(x: np.ndarray) -> np.ndarray:
        x = np.array(x)
        x[:, MIXED.real] = scales * x[:, MIXED.real] + shifts
        return x

    return {"data": lambda data: change(data, x=values), "params": params}


MIXED_MEMBERSHIP_REALS = Model(
    "mixed_membership",
    MixedMembership(
        np.array([0.3, 0.2, 0.1]),
        np.concatenate(
            [
                distinct_columns(j, 3, 3) if kind == "categorical" else np.random.default_rng(j).normal(size=(1, 3))
                for j, kind in enumerate(MIXED.kinds)
            ]
        ),
        np.full(4, 0.2),
    ),
    lambda rng, x: table(rng, x, variables=MIXED),
    weights=lambda params: params.concentration,
    fit_tolerance=1e-4,
    options={"variables": MIXED, "concentration": 0.6, "anchors": ((0, 1), (2, 3), (4, 5))},
    symmetries=(
        Symmetry("scales", **change_reals(MIXED_SCALES, np.zeros(4))),
        Symmetry("translations", **change_reals(np.ones(4), MIXED_SHIFTS)),
    ),
    variant="reals",
    has_exact_likelihood=False,
)

LATENT_CLASS_REALS = Model(
    "latent_class",
    LatentClass(
        np.array([0.5, 0.3, 0.2]),
        MIXED_MEMBERSHIP_REALS.params.tables,
        np.random.default_rng(6).uniform(0.2, 0.4, (4, 3)),
    ),
    lambda rng, x: table(rng, x, variables=MIXED),
    weights=lambda params: params.weights,
    num_rows=600,
    options={"variables": MIXED},
    symmetries=(
        Symmetry(
            "scales",
            **change_reals(MIXED_SCALES, np.zeros(4)),
            log_likelihood=lambda data: -(np.asarray(data.mask)[:, MIXED.real] @ np.log(MIXED_SCALES)),
        ),
        Symmetry("translations", **change_reals(np.ones(4), MIXED_SHIFTS)),
    ),
    variant="reals",
)

VARIANTS = (NAIVE_BAYES_IDS, HIDDEN_MARKOV_VECTORS, MIXED_MEMBERSHIP_REALS, LATENT_CLASS_REALS)
