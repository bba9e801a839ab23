"""Who has learned what, and when: from alignments m (…, head, feature), over time in front.

Pure functions of NumPy arrays. A head that points nowhere (|m| below the tolerance) has sign 0.
"""

import numpy as np

from attnflow._checks import positive


def head_spread(m: np.ndarray) -> np.ndarray:
    """Greatest minus least alignment among heads, for each feature. Cost: O(size)."""
    m = np.asarray(m)
    return m.max(axis=-2) - m.min(axis=-2)


def split_times(times: np.ndarray, m: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """When each feature first has heads `threshold` apart (linear between records); infinite if
    never. `m` is (time, head, feature)."""
    positive("threshold", threshold)
    times, spread = np.asarray(times, float), head_spread(m)
    found = np.full(spread.shape[-1], np.inf)
    for feature, path in enumerate(spread.T):
        above = np.flatnonzero(path >= threshold)
        if above.size == 0:
            continue
        right = int(above[0])
        if right == 0:
            found[feature] = times[0]
            continue
        fraction = (threshold - path[right - 1]) / (path[right] - path[right - 1])
        found[feature] = times[right - 1] + fraction * (times[right] - times[right - 1])
    return found


def unspecialized_time(
    times: np.ndarray, m: np.ndarray, mean: np.ndarray, share: float = 0.5
) -> float:
    """When the heads' common alignment with the signal's mean first reaches `share` of its largest;
    infinite if the mean vanishes."""
    mean = np.asarray(mean, float)
    size = np.linalg.norm(mean)
    if size == 0:
        return np.inf
    along = np.asarray(m).mean(axis=-2) @ mean / size
    return float(np.asarray(times)[np.argmax(along >= share * along.max())])


def sign_patterns(m: np.ndarray, tolerance: float = 0.1) -> np.ndarray:
    """−1, 0 or 1 for each head and feature; 0 within `tolerance` of the greatest |m|."""
    m = np.asarray(m)
    scale = np.abs(m).max(axis=(-2, -1), keepdims=True)
    return np.where(np.abs(m) <= tolerance * scale, 0, np.sign(m)).astype(int)


def head_groups(m: np.ndarray, tolerance: float = 0.1) -> list[list[int]]:
    """Heads with the same sign pattern, largest group first. `m` is (head, feature)."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for head, pattern in enumerate(sign_patterns(m, tolerance)):
        groups.setdefault(tuple(pattern), []).append(head)
    return sorted(groups.values(), key=lambda heads: (-len(heads), heads))


def head_similarity(m: np.ndarray) -> np.ndarray:
    """Cosines between heads in feature space (…, head, head); 0 for a head of length 0."""
    m = np.asarray(m)
    length = np.linalg.norm(m, axis=-1, keepdims=True)
    unit = m / np.where(length > 0, length, 1)
    return unit @ np.swapaxes(unit, -1, -2)


def excursions(m: np.ndarray, tolerance: float = 0.1) -> np.ndarray:
    """How often each head changed sides on each feature once it had taken one: (head, feature)
    counts from m (time, head, feature). A side is |m| beyond `tolerance` of the greatest ever."""
    m = np.asarray(m)
    level = tolerance * np.abs(m).max()
    sides = np.where(np.abs(m) <= level, 0, np.sign(m))
    changes = np.zeros(m.shape[1:], int)
    last = np.zeros(m.shape[1:])
    for side in sides:
        changes += (side != 0) & (last != 0) & (side != last)
        last = np.where(side != 0, side, last)
    return changes
