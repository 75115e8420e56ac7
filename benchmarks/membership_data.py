"""What the benchmarks of mixed membership share: samples, and the paper's algorithm in plain NumPy."""

import numpy as np

ALPHA = 0.1
CATEGORIES = 4


def draw_tables(rng: np.random.Generator, num_variables: int, num_components: int) -> np.ndarray:
    """Return tables `(p · 4, k)`, columns of each variable's block from Dir(0.5)."""
    tables = rng.dirichlet([0.5] * CATEGORIES, size=(num_variables, num_components))
    return tables.transpose(0, 2, 1).reshape(-1, num_components).astype(np.float32)


def draw_samples(
    rng: np.random.Generator, tables: np.ndarray, num_samples: int, contamination: float = 0.0
) -> np.ndarray:
    """Return category codes `(n, p)`, a share of them replaced by uniform draws."""
    k = tables.shape[1]
    p = tables.shape[0] // CATEGORIES
    memberships = rng.dirichlet([ALPHA] * k, size=num_samples)
    component = (rng.random((num_samples, p))[:, :, None] > np.cumsum(memberships, axis=1)[:, None, :-1]).sum(axis=2)
    cumulative = np.cumsum(tables.reshape(p, CATEGORIES, k), axis=1)
    thresholds = cumulative[np.arange(p)[None, :], :-1, component]
    codes = (rng.random((num_samples, p))[:, :, None] > thresholds).sum(axis=2)
    replaced = rng.random(codes.shape) < contamination
    return np.where(replaced, rng.integers(0, CATEGORIES, codes.shape), codes).astype(np.int32)


def sub_tensor(x: np.ndarray, modes: list[np.ndarray], total: float) -> np.ndarray:
    """Return the corrected third moment of three groups of variables (eq. 4 of the paper)."""
    b = [np.eye(CATEGORIES, dtype=np.float32)[x[:, mode]].reshape(len(x), -1) for mode in modes]
    n = len(x)
    first = [part.mean(axis=0) for part in b]
    pairs = [b[i].T @ b[j] / n for i, j in ((0, 1), (0, 2), (1, 2))]
    pair = (b[1][:, :, None] * b[2][:, None, :]).reshape(n, -1)
    third = (b[0].T @ pair / n).reshape(b[0].shape[1], b[1].shape[1], b[2].shape[1])
    mixed = (
        pairs[0][:, :, None] * first[2]
        + pairs[1][:, None, :] * first[1][None, :, None]
        + pairs[2][None] * first[0][:, None, None]
    )
    outer = first[0][:, None, None] * first[1][None, :, None] * first[2]
    return third - total / (total + 2) * mixed + 2 * total**2 / ((total + 1) * (total + 2)) * outer


def factorize(
    rng: np.random.Generator, tensor: np.ndarray, rank: int, target: float, max_sweeps: int
) -> tuple[list[np.ndarray], int]:
    """Run Algorithm 1 of the paper until `|M − M̃| / |M|` is down to `target`; return factors and sweeps.

    The objective is looked at after every tenth sweep.
    """
    tensor = tensor / np.abs(tensor).max()
    unfolded = [np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1) for mode in range(3)]
    size = np.linalg.norm(tensor)
    factors = [rng.random((d, rank), dtype=np.float32) for d in tensor.shape]
    for sweep in range(1, max_sweeps + 1):
        for mode in range(3):
            first, second = (factors[other] for other in range(3) if other != mode)
            product = (first[:, None, :] * second[None, :, :]).reshape(-1, rank)
            quadratic = (first.T @ first) * (second.T @ second)
            linear = -unfolded[mode] @ product
            values, vectors = np.linalg.eigh(quadratic)
            values = np.maximum(values, 1e-7 * values[-1])
            lengths = np.sqrt(np.sum((linear @ vectors) ** 2 / values, axis=1) / values[0])
            phi = np.maximum(lengths[:, None] * np.diag(quadratic) - np.abs(linear), 0) / 2 + 1e-10
            x = factors[mode]
            factors[mode] = x * (np.maximum(-linear, 0) + phi) / (x @ quadratic + np.maximum(linear, 0) + phi)
        if sweep % 10 == 0:
            made = (factors[0] @ (factors[1][:, None, :] * factors[2][None, :, :]).reshape(-1, rank).T).reshape(
                tensor.shape
            )
            if np.linalg.norm(tensor - made) / size <= target:
                break
    return factors, sweep


def match_procrustes(reference: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """Return the order of the columns of `estimate` (eq. 10 of the paper)."""
    unit = [m / np.maximum(np.linalg.norm(m, axis=0), 1e-30) for m in (reference, estimate)]
    left, _, right = np.linalg.svd(unit[0].T @ unit[1])
    return np.argmax(left @ right, axis=1)


def normalize(factor: np.ndarray) -> np.ndarray:
    """Return a factor whose variables' blocks have columns that sum to one."""
    blocks = factor.reshape(-1, CATEGORIES, factor.shape[1])
    total = blocks.sum(axis=1, keepdims=True)
    return np.where(total > 0, blocks / np.where(total > 0, total, 1), 1 / CATEGORIES).reshape(factor.shape)


def join_partitions(factors: list[np.ndarray], rows: list[np.ndarray], num_rows: int) -> np.ndarray:
    """Return tables `(num_rows, k)` from the factors `(P, r, k)` of all partitions, averaged over partitions.

    `rows (P, r)` of each mode are places in the tables; −1 is padding. Columns are in a common order.
    """
    tables = np.zeros((num_rows, factors[0].shape[-1]), np.float32)
    counts = np.zeros((num_rows, 1), np.float32)
    for factor, places in zip(factors, rows, strict=True):
        for part, place in zip(factor, places, strict=True):
            seen = place >= 0
            tables[place[seen]] += normalize(part[seen])
            counts[place[seen]] += 1
    return tables / counts
