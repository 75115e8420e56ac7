"""Real data sets as arrays, for benchmarks that look at several of them."""

import csv
import gzip
from typing import NamedTuple

import numpy as np

from benchmarks.nltcs import NLTCS_VARIABLES, read_nltcs
from benchmarks.runner import Options
from latensor.moments import Variables, categorical_variables

_LETTERS, _RESIDUES = "ACGT", "ACDEFGHIKLMNPQRSTVWY"
# fmt: off
PHYSIONET_COLUMNS = [
    "BUN_first", "Creatinine_first", "HCT_first", "GCS_median", "HR_median", "Platelets_first", "Temp_median",
    "HCO3_first", "Na_first", "K_first", "WBC_first", "Mg_first", "Glucose_median", "NISysABP_median",
    "NIDiasABP_median", "NIMAP_median", "pH_first", "PaCO2_first", "PaO2_first", "MAP_median", "DiasABP_median",
    "SysABP_first", "FiO2_first", "Weight_first", "Lactate_first", "SaO2_median", "AST_first", "ALT_first",
    "Bilirubin_first", "ALP_first", "Albumin_first", "RespRate_median",
]
# fmt: on


class Split(NamedTuple):
    """Rows to learn from and rows held out; NaN, or a code below zero, is missing."""

    train: np.ndarray
    test: np.ndarray


class Survey(NamedTuple):
    """A split of a table of categorical and real variables."""

    rows: Split
    variables: Variables


class Chains(NamedTuple):
    """Sequences of symbols end to end, to learn from and held out, and their lengths."""

    rows: Split
    lengths: Split
    num_symbols: int


def _divide(x: np.ndarray, share: float = 0.2) -> Split:
    order = np.random.default_rng(12).permutation(len(x))
    held_out = int(share * len(x))
    return Split(x[order[held_out:]], x[order[:held_out]])


def newsgroups(options: Options, num_words: int) -> Split:
    """Return counts of the words that are in most posts, stop words left out; posts of three words or more."""
    with np.load(options.data_file("newsgroups20/counts_all.npz"), allow_pickle=False) as file:
        rows = np.repeat(np.arange(file["shape"][0]), np.diff(file["indptr"]))
        columns, values, split = file["indices"].astype(int), file["data"].astype(np.float32), file["split"]
    words = [line.split("\t") for line in options.data_file("newsgroups20/vocabulary_all.txt").read_text().splitlines()]
    common = np.array([0 if int(stop) else int(number) for _, number, stop in words])
    place = np.full(len(words), -1)
    place[np.argsort(-common, kind="stable")[:num_words]] = np.arange(num_words)
    kept = place[columns] >= 0
    counts = np.zeros((len(split), num_words), np.float32)
    counts[rows[kept], place[columns[kept]]] = values[kept]
    enough = counts.sum(axis=1) >= 3
    return Split(counts[enough & (split == 0)], counts[enough & (split == 1)])


def nltcs(options: Options) -> Survey:
    """Return the disability survey, 16 items."""
    answers = read_nltcs(options)
    return Survey(Split(answers.train, answers.test), NLTCS_VARIABLES)


def house_votes(options: Options) -> Survey:
    """Return 16 votes of 435 members of the House."""
    lines = options.data_file("house-votes-84/house-votes-84.data").read_text().split()
    codes = {"n": 0, "y": 1, "?": -1}
    return Survey(
        _divide(np.array([[codes[v] for v in line.split(",")[1:]] for line in lines])), categorical_variables(16, 2)
    )


def promoters(options: Options) -> Survey:
    """Return 106 sequences of 57 nucleotides."""
    with options.data_file("promoters/promotergene.csv").open(newline="") as file:
        rows = [[_LETTERS.find(v.upper()) for v in row[1:]] for row in list(csv.reader(file))[1:]]
    return Survey(_divide(np.array(rows)), categorical_variables(57, 4))


def splice(options: Options) -> Survey:
    """Return 3,190 sequences of 60 nucleotides; ambiguous letters are missing."""
    with options.data_file("splice-junction/splice.csv").open(newline="") as file:
        rows = [[_LETTERS.find(v) for v in row["sequence"].strip()] for row in csv.DictReader(file)]
    return Survey(_divide(np.array(rows)), categorical_variables(60, 4))


def perisk(options: Options) -> Survey:
    """Return the risk of 62 countries: two real variables and three with categories."""
    with options.data_file("perisk/PErisk.csv").open(newline="") as file:
        rows = np.array([[float(value) for value in row[1:]] for row in list(csv.reader(file))[1:]])
    kinds = ("categorical", "real", "categorical", "categorical", "real")
    return Survey(_divide(rows), Variables(kinds, (2, 1, 6, 6, 1)))


def physionet(options: Options) -> Split:
    """Return 8,000 stays in intensive care, 32 columns, 23 % missing."""
    rows = []
    for part in "ab":
        name = f"physionet2012/PhysionetChallenge2012-set-{part}.csv.gz"
        with gzip.open(options.data_file(name), "rt", newline="") as file:
            rows += [[float(row[c]) if row[c] else np.nan for c in PHYSIONET_COLUMNS] for row in csv.DictReader(file)]
    x = np.array(rows, np.float32)
    return _divide(x[~np.all(np.isnan(x), axis=1)])


def proteins(options: Options) -> Chains:
    """Return chains of amino acids."""
    rows, lengths = [], []
    for part in ("train", "test"):
        text = options.data_file(f"protein-secondary-structure/protein-secondary-structure.{part}").read_text()
        chains = [
            [_RESIDUES.index(line[0]) for line in chain.splitlines() if line[:1] in _RESIDUES and line.strip()]
            for chain in text.split("<>")
        ]
        chains = [chain for chain in chains if len(chain) > 2]
        rows.append(np.concatenate(chains).astype(np.int32))
        lengths.append(np.array([len(chain) for chain in chains]))
    return Chains(Split(*rows), Split(*lengths), len(_RESIDUES))


def english(options: Options, num_words: int, sentences: int) -> Chains:
    """Return sentences of the English Web Treebank, words that are not among the most frequent as one symbol."""
    rows, lengths = [], []
    with np.load(options.data_file("ud-english-ewt/ewt_pos_ids.npz"), allow_pickle=False) as file:
        for part in ("train", "test"):
            offsets = file[f"{part}_offsets"][: sentences + 1]
            words = file[f"{part}_word"][: offsets[-1]].astype(np.int32)
            rows.append(np.where(words > num_words, 0, words))
            lengths.append(np.diff(offsets))
    return Chains(Split(*rows), Split(*lengths), num_words + 1)


def as_chains(survey: Survey, num_symbols: int) -> Chains:
    """Return the complete rows of a survey whose variables are the positions of a sequence."""
    parts = [part[np.all(part >= 0, axis=1)].astype(np.int32) for part in survey.rows]
    lengths = [np.full(len(part), part.shape[1]) for part in parts]
    return Chains(Split(*(part.ravel() for part in parts)), Split(*lengths), num_symbols)
