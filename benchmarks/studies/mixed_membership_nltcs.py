"""Disability of the elderly (NLTCS): held-out likelihood of mixed membership against a latent-class model.

16,181 people answered 16 yes-or-no questions; 3,236 others are held out. k = 2 to 6 components. The latent-class model
puts every person into one class (EM, the best of ten random starts by training likelihood). Mixed membership: `fit`
with an estimated concentration, and `refine` from there; the better of the two on the 2,157 people kept for validation
is reported. Claim: mixed membership gives held-out people a higher likelihood than a latent-class model with as many
classes, for each k.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks import nltcs
from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report


def run(options: Options) -> Report:
    """Fit both models for every k."""
    answers = nltcs.read_nltcs(options)
    components = (2, 3) if options.quick else (2, 3, 4, 5, 6)
    rows: list[list[Any]] = []
    ours, theirs = [], []
    for k in tqdm(components, desc="components"):
        key_fit, key_score, key_class = jax.random.split(jax.random.fold_in(jax.random.key(8), k), 3)
        membership = nltcs.fit_membership(key_fit, key_score, answers, k)
        ours.append(membership.value)
        theirs.append(nltcs.latent_class_score(key_class, answers, k))
        total = float(jnp.sum(membership.params.concentration))
        rows.append([k, theirs[-1], *membership[2:4], membership.chosen, membership.fit_value, total])
    gains = np.array(ours) - np.array(theirs)
    claims = [
        Claim(
            "mixed membership has the higher held-out log-likelihood for each k",
            ", ".join(f"k = {k}: {gain:+.3f}" for k, gain in zip(components, gains, strict=True)),
            bool(np.all(gains > 0)),
        )
    ]
    made, (axis,) = figure(1, (4.2, 3.2))
    axis.plot(components, theirs, color=COLOURS["grey"], marker="o", label="latent class")
    axis.plot(components, ours, color=COLOURS["blue"], marker="o", label="mixed membership")
    axis.set(xlabel="components", ylabel="held-out log-likelihood per person", xticks=components, title="NLTCS")
    axis.legend(frameon=False)
    columns = ["k", "latent class", "mixed membership", "its error", "by", "fit alone", "concentration"]
    return Report(columns, rows, claims, {"people": len(answers.train), "held_out": len(answers.test)}, made)
