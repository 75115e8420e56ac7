"""Random hidden Markov models, drawn by NumPy."""

import jax.numpy as jnp
import numpy as np

from latensor.models.hidden_markov import HiddenMarkov


def draw_model(rng: np.random.Generator, k: int, d: int, concentration: float = 0.5) -> HiddenMarkov:
    """Return a model whose rows of transitions and columns of emissions are Dirichlet; it begins as it goes on."""
    transition = rng.dirichlet(np.full(k, concentration), k)
    emission = rng.dirichlet(np.full(d, concentration), k).T
    initial = np.linalg.matrix_power(transition, 1000).mean(axis=0)
    parts = (initial / initial.sum(), transition, emission)
    return HiddenMarkov(*(jnp.asarray(part, jnp.float32) for part in parts))
