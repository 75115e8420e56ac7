"""Splice junctions: the memberships of 3,190 DNA sequences, as the bar chart that geneticists draw.

60 nucleotides around a place in primate DNA that is an exon-intron border (EI), an intron-exon border (IE) or neither
(N); 60 ambiguous letters count as missing. Three components with an estimated concentration, the labels not used.
Measured: how many sequences have the label that is most common among those with the same main component. Claim: more
than the 52 % that the most common label has; the picture is one thin stacked bar a sequence.
"""

import csv

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report
from latensor.models import mixed_membership
from latensor.moments import categorical_variables

_LETTERS, _LABELS = "ACGT", ("EI", "IE", "N")
_COMPONENTS = 3


def _read(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Return letters as codes, −1 where ambiguous, and labels."""
    with options.data_file("splice-junction/splice.csv").open(newline="") as file:
        rows = [(row["label"].strip(), row["sequence"].strip()) for row in csv.DictReader(file)]
    codes = np.array([[_LETTERS.find(letter) for letter in sequence] for _, sequence in rows], np.int32)
    return codes, np.array([_LABELS.index(label) for label, _ in rows])


def run(options: Options) -> Report:
    """Fit, infer memberships, and draw them."""
    x, labels = _read(options)
    if options.quick:
        x, labels = x[::8], labels[::8]
    mask = x >= 0
    variables = categorical_variables(x.shape[1], len(_LETTERS))
    key = jax.random.key(9)
    fit = mixed_membership.fit(key, np.maximum(x, 0), _COMPONENTS, variables=variables, mask=mask)
    refined = mixed_membership.refine(fit.params, np.maximum(x, 0), variables=variables, mask=mask)
    members = np.asarray(mixed_membership.posterior(refined.params, np.maximum(x, 0), variables=variables, mask=mask))
    main = members.argmax(axis=1)
    table = np.array([[np.sum((main == h) & (labels == c)) for c in range(3)] for h in range(_COMPONENTS)])
    purity = table.max(axis=1).sum() / len(labels)
    common = np.bincount(labels).max() / len(labels)
    rows = [
        [f"component {h + 1}", *map(int, table[h]), *(float(members[labels == c, h].mean()) for c in range(3))]
        for h in range(_COMPONENTS)
    ]
    claims = [
        Claim(
            "main components tell more of the label than the most common label",
            f"{purity:.1%} against {common:.1%} (concentration {float(jnp.sum(fit.params.concentration)):.2f})",
            bool(purity > common),
        )
    ]
    made, (axis,) = figure(1, (9.0, 2.6))
    order = np.concatenate(
        [np.flatnonzero(labels == c)[np.argsort(members[labels == c, table[:, c].argmax()])[::-1]] for c in range(3)]
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
    return Report(columns, rows, claims, {"purity": purity, "memberships": members.mean(axis=0)}, made)
