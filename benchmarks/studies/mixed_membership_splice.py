"""Splice junctions: the memberships of 3,190 DNA sequences, as the bar chart that geneticists draw.

60 nucleotides around a place in primate DNA that is an exon-intron border (EI), an intron-exon border (IE) or neither
(N); 60 ambiguous letters count as missing. Three components with an estimated concentration, the labels not used.
Measured: the information that the main component has about the label, and the purity, how many sequences have the
label that is most common among those with the same main component. The purity is never below the share of the most
common label (52 %), so claims are about the information: it is above that of all of 1,000 random orders of the labels,
and at least that of variational EM from five random starts, the likeliest of which counts. The picture is one thin
stacked bar per sequence.
"""

import csv
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report
from latensor.models import mixed_membership
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import categorical_variables

_LETTERS, _LABELS = "ACGT", ("EI", "IE", "N")
_COMPONENTS, _PERMUTATIONS, _STARTS = 3, 1_000, 5


def _read(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Return letters as codes, −1 where ambiguous, and labels."""
    with options.data_file("splice-junction/splice.csv").open(newline="") as file:
        rows = [(row["label"].strip(), row["sequence"].strip()) for row in csv.DictReader(file)]
    codes = np.array([[_LETTERS.find(letter) for letter in sequence] for _, sequence in rows], np.int32)
    return codes, np.array([_LABELS.index(label) for label, _ in rows])


def _counts(main: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return how many sequences have each main component (rows) and each label (columns)."""
    table = np.zeros((_COMPONENTS, len(_LABELS)), int)
    np.add.at(table, (main, labels), 1)
    return table


def _purity(main: np.ndarray, labels: np.ndarray) -> float:
    return float(_counts(main, labels).max(axis=1).sum() / len(labels))


def _information(main: np.ndarray, labels: np.ndarray) -> float:
    """Return the mutual information of components and labels, in nats."""
    joint = _counts(main, labels) / len(labels)
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(np.sum(joint[joint > 0] * np.log(joint[joint > 0] / apart[joint > 0])))


def _random_start(rng: np.random.Generator, x: np.ndarray, mask: np.ndarray, total: float) -> MixedMembership:
    """Return tables drawn around the overall frequencies of each place, and even proportions."""
    blocks = []
    for column, seen in zip(x.T, mask.T, strict=True):
        usual = np.bincount(column[seen], minlength=len(_LETTERS)) + 1.0
        drawn = rng.exponential(size=(len(_LETTERS), _COMPONENTS)) * usual[:, None]
        blocks.append(drawn / drawn.sum(axis=0))
    concentration = jnp.full(_COMPONENTS, total / _COMPONENTS, jnp.float32)
    return MixedMembership(concentration, jnp.asarray(np.concatenate(blocks), jnp.float32), None)


def run(options: Options) -> Report:
    """Fit, infer memberships, and draw them."""
    x, labels = _read(options)
    if options.quick:
        x, labels = x[::8], labels[::8]
    mask, x = x >= 0, np.maximum(x, 0)
    table: dict[str, Any] = {"variables": categorical_variables(x.shape[1], len(_LETTERS)), "mask": mask}
    # A quick run does without the search for the concentration: ten fits.
    given: dict[str, Any] = {"concentration": 1.0} if options.quick else {}
    fit = mixed_membership.fit(jax.random.key(9), x, _COMPONENTS, **table, **given)
    total = float(jnp.sum(fit.params.concentration))
    rng = np.random.default_rng(9)
    starts = [fit.params, *(_random_start(rng, x, mask, total) for _ in range(_STARTS))]
    refined = [mixed_membership.refine(start, x, **table) for start in starts]
    bounds = [float(result.log_likelihood) for result in refined]
    likeliest = 1 + int(np.argmax(bounds[1:]))
    members = np.asarray(mixed_membership.posterior(refined[0].params, x, **table))
    others = np.asarray(mixed_membership.posterior(refined[likeliest].params, x, **table))
    main = members.argmax(axis=1)
    table_of_labels = _counts(main, labels)
    other = others.argmax(axis=1)
    ours, theirs = _information(main, labels), _information(other, labels)
    null = np.array([_information(main, rng.permutation(labels)) for _ in range(_PERMUTATIONS)])
    rows = [
        [
            f"component {h + 1}",
            *map(int, table_of_labels[h]),
            *(float(members[labels == c, h].mean()) for c in range(3)),
        ]
        for h in range(_COMPONENTS)
    ]
    claims = [
        Claim(
            f"the information about the label is above that of all of {_PERMUTATIONS:,} random orders of the labels",
            f"{ours:.3f} against {null.max():.3f} nats at most; purity {_purity(main, labels):.1%} "
            f"(concentration {total:.2f})",
            bool(ours > null.max()),
        ),
        Claim(
            f"and at least that of EM from the likeliest of {_STARTS} random starts",
            f"{ours:.3f} against {theirs:.3f} nats, purities {_purity(main, labels):.1%} and "
            f"{_purity(other, labels):.1%}; bounds {bounds[0]:.3f} and {bounds[likeliest]:.3f} a sequence",
            ours >= theirs,
        ),
    ]
    data = {"information": ours, "random_information": theirs, "null": null, "bounds": bounds}
    data |= {"purity": _purity(main, labels), "random_purity": _purity(other, labels), "concentration": total}
    made, (axis,) = figure(1, (9.0, 2.6))
    order = np.concatenate(
        [
            np.flatnonzero(labels == c)[np.argsort(members[labels == c, table_of_labels[:, c].argmax()])[::-1]]
            for c in range(3)
        ]
    )
    bottom = np.zeros(len(order))
    for h, colour in zip(range(_COMPONENTS), ("blue", "orange", "green"), strict=True):
        top = bottom + members[order, h]
        axis.fill_between(np.arange(len(order)), bottom, top, step="mid", color=COLOURS[colour], linewidth=0)
        bottom = top
    ends = np.cumsum([np.sum(labels == c) for c in range(3)])
    for end, name, size in zip(ends, _LABELS, np.diff([0, *ends]), strict=True):
        axis.axvline(end, color="white", linewidth=1.5)
        axis.text(end - size / 2, -0.06, name, ha="center", va="top")
    axis.set(xlim=(0, len(order)), ylim=(0, 1), xticks=[], ylabel="membership")
    axis.set_title(f"{len(order):,} splice-junction sequences, {_COMPONENTS} components")
    columns = ["", *(f"main, {name}" for name in _LABELS), *(f"mean in {name}" for name in _LABELS)]
    return Report(columns, rows, claims, data | {"memberships": members.mean(axis=0)}, made)
