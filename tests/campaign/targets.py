"""The modules of the core, the tests that must notice a change in each, and changes that change nothing."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

_PAIRS = "tests/kernels/test_pairs.py"

TARGETS: dict[str, tuple[str, ...]] = {
    "functional/binning": ("tests/functional/test_binning.py", _PAIRS),
    "functional/checks": ("tests/functional/test_checks.py",),
    "functional/counting": ("tests/functional/test_counting.py", "tests/functional/test_binning.py", _PAIRS),
    "functional/decomposition": ("tests/functional/test_decomposition.py",),
    "functional/division": ("tests/functional/test_division.py", _PAIRS, "tests/functional/test_probability.py"),
    "functional/fine": ("tests/functional/test_fine.py",),
    "functional/geometry": ("tests/functional/test_geometry.py",),
    "functional/masks": (_PAIRS, "tests/test_regions.py"),
    "functional/pixels": ("tests/functional/test_pixels.py", _PAIRS, "tests/functional/test_checks.py"),
    "functional/probability": ("tests/functional/test_probability.py",),
    "functional/random_labels": ("tests/functional/test_random_labels.py", _PAIRS),
    "functional/scores": ("tests/functional/test_scores.py", _PAIRS),
    "functional/standardise": ("tests/kernels/test_standardise.py", _PAIRS),
    "functional/temperature": ("tests/functional/test_temperature.py",),
    "regions": ("tests/test_regions.py",),
    "statistics/bootstrap": ("tests/statistics/test_bootstrap.py", "tests/statistics/test_significance.py"),
    "statistics/folds": ("tests/statistics/test_folds.py",),
    "statistics/grouping": ("tests/statistics/test_grouping.py",),
    "statistics/selection": ("tests/statistics/test_selection.py",),
    "statistics/significance": ("tests/statistics/test_significance.py",),
    "training/batches": ("tests/training/test_batches.py", "tests/training/test_loop.py"),
    "training/loop": ("tests/training/test_loop.py",),
    "metrics": ("tests/test_metrics.py",),
    "evaluation/pooled": ("tests/evaluation/test_pooled.py", "tests/evaluation/test_run.py"),
    "evaluation/measure": ("tests/evaluation/test_run.py",),
    "evaluation/places": ("tests/evaluation/test_run.py",),
}
"""Tests of each module, quick ones first."""

SLOW = "not two_processes and not 50_million and not killed and not covers and not within_its_bound"
"""What is left out of every run: tests that take longer than all others together."""

_EQUAL_LENGTHS: tuple[tuple[str, str], ...] = (
    ("evaluation/pooled", "interval = dict(zip(self.drawn, zip(*ends, strict=True), strict=True))"),
    ("evaluation/pooled", "yield from zip(BINS, ece_by_bins(top_cells, BINS).tolist(), strict=True)"),
    ("functional/binning", "for column, values in zip(self._columns, part, strict=True):"),
    ("functional/binning", "return Histogram(*(torch.stack(fields) for fields in zip(*histograms, strict=True)))"),
    (
        "functional/counting",
        "count, hit, total = (torch.stack(parts).view(-1, num_classes, bins) for parts in zip(*tables, strict=True))",
    ),
    (
        "functional/counting",
        "count, hit, total, support, totals = (torch.stack(parts) for parts in zip(*found, strict=True))",
    ),
    ("functional/counting", "for total, values in zip((*tables, confidence), found[:3], strict=True):"),
    ("functional/counting", "for total, value in zip(totals[:5], found, strict=True):"),
    ("functional/counting", "for table, part in zip((count, hit, total), parts, strict=True):"),
    (
        "functional/decomposition",
        'found.update({f"{score}-{part}": value for part, value in zip(PARTS, values, strict=True)})',
    ),
    ("metrics", "for cells, region in zip(list(self._cells())[rows], index, strict=True):"),
    ("metrics", "return dict(zip(self.regions, values.tolist(), strict=True))"),
    ("metrics", 'for name, value in zip((*_FIELDS, "support", "sums"), found, strict=True):'),
    ("metrics", "for name, value in zip(_FIELDS, evidence.top, strict=True):"),
    ("metrics", "for name, value in zip(_FIELDS, evidence.static, strict=True):"),
    ("metrics", "adaptive = Histogram(*(torch.stack(fields) for fields in zip(*each, strict=True)))"),
    ("metrics", 'return (Histogram(*fields) for fields in zip(*self._histogram("cell_"), strict=True))'),
    ("statistics/bootstrap", "for column, value, left in zip(drawn.T, whole, without_one.T, strict=True)"),
    ("training/batches", "size = sum(size for size, left in zip(sizes, on_disk, strict=True) if not left)"),
    (
        "training/batches",
        "return tuple(part if left else self._copy(part) for part, left in zip(sample, on_disk, strict=True))",
    ),
    ("training/loop", "for chosen, prepared in zip(steps, batches, strict=True):"),
    ("training/loop", "pairs = list(zip(mine, randoms, strict=True))"),
)
"""Lines that zip, strictly, what has one length by construction: fields of one tuple, or lists made from one list."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "statistics/bootstrap",
        "many = int(member.max()) + 1 if units else 0",
        "1",
    ): "no clusters and one cluster are treated alike: fewer than two",
    (
        "functional/probability",
        "below = torch.where(bits > 0, bits - 1, bits + 1)",
        "bits >= 0",
    ): "0 is replaced in the last line",
    (
        "functional/probability",
        "half = 0.5 * torch.ones_like(probs)",
        "0.5 / torch.ones_like(probs)",
    ): "a division by 1",
    (
        "functional/fine",
        "low, high = 0.0, 1.0",
        "3.0",
    ): "the error is at most 1, so that a search from a larger number ends at the same one",
    (
        "functional/fine",
        "for _ in range(30):",
        "31",
    ): "one more halving of an interval of 1e-9",
    (
        "functional/temperature",
        "return torch.where(free, found[:, 2], 0.0), torch.where(free, found[:, 3], 1.0)",
        "3.0",
    ): "the slope of a function that is 0 everywhere; its root is not used",
    (
        "functional/temperature",
        "alpha = torch.where(truth == 0, torch.inf, 0.0).double()",
        "1.0",
    ): "overwritten by the next three lines wherever it is not infinite",
    (
        "training/loop",
        "mine = self._mine(chosen) or chosen[:1]",
        "2",
    ): "samples that count with weight 0",
    (
        "metrics",
        'read = torch.stack([found[name].double() for name in (*METRICS, "pixels")], dim=-1)',
        "1",
    ): "the readings have one axis, so that axis 1 of the stack is its last",
    (
        "statistics/bootstrap",
        "bits = _EXACT - int(np.ceil(np.log2(max(2.0, drawn.sum(axis=1).max(initial=0.0)))))",
        "5.0",
    ): "two parts of 49 bits instead of 50 or 51: both hold more bits than a double has, and sums of either are exact",
    (
        "statistics/folds",
        "loads[fold] += totals[cluster], 1",
        "2",
    ): "the number of groups of a fold, doubled for all folds: they keep their order",
    (
        "statistics/grouping",
        "if closeness < 1 and rank <= (_SHUFFLES // 20 if counted else 0):",
        "21",
    ): "199 // 20 and 199 // 21 are both 9",
    (
        "functional/probability",
        "bits = (values + 0.0).view(width)  # + 0.0 turns -0 into 0",
        "values - 0.0",
    ): "the bits of -0 plus 1 are those of the smallest negative number, too",
    (
        "functional/fine",
        "low, high = (middle, high) if error(middle) > middle else (low, middle)",
        "error(middle) >= middle",
    ): "where both are equal the root is the middle, and both halves end there",
    (
        "metrics",
        "read = torch.empty(0)",
        "1",
    ): "replaced in every turn if there are metrics of single images, and otherwise not read",
    (
        "evaluation/pooled",
        "own_hit, own_count = (field.reshape(cases, -1)[:, held].astype(np.float64) for field in (hit, count))",
        "2",
    ): "NumPy works out any negative length, not only -1",
    (
        "functional/checks",
        "if class_axis == 0 and spatial > 1 and tuple(shape[:2]) == (1, num_classes):",
        "spatial >= 1",
    ): "with one axis beside the classes, the condition above has already found them on the last axis",
    (
        "functional/temperature",
        'return "overconfident" if nll > entropy else "underconfident"',
        "nll >= entropy",
    ): "equal numbers have been found balanced",
    (
        "statistics/bootstrap",
        "low, high = np.array(ends).reshape(-1, 2).T",
        "2",
    ): "NumPy works out any negative length, not only -1",
    (
        "training/batches",
        "return torch.stack([part.to(device, non_blocking=True) for part in parts])",
        "False",
    ): "the same copy, which the host waits for",
    (
        "functional/probability",
        "width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]",
        "2",
    ): "PyTorch cannot add floats of one byte, as the next line does",
    (
        "functional/temperature",
        "low, high = torch.where(value <= 0, x, low), torch.where(value >= 0, x, high)",
        "value < 0",
    ): "where the value is 0 the search stays at x, whatever the bounds",
    (
        "functional/temperature",
        "low, high = torch.where(value <= 0, x, low), torch.where(value >= 0, x, high)",
        "value > 0",
    ): "where the value is 0 the search stays at x, whatever the bounds",
    (
        "training/batches",
        "return stacked.to(device, non_blocking=True)",
        "False",
    ): "the same copy, which the host waits for",
    (
        "functional/probability",
        "above = torch.where(probs > half, probs, half + torch.finfo(probs.dtype).eps / 2)",
        "3",
    ): "rounded to the same number, the next above 1/2",
    (
        "statistics/bootstrap",
        "return np.quantile(kept, shares) if kept.size and not np.isnan(shares).any() "
        "else np.full(shares.shape, np.nan)",
        "np.isnan(shares).all",
    ): "both shares are unknown or none is",
    (
        "functional/binning",
        "cumulative = counts.cumsum(dim=-1)",
        "1",
    ): "the counts have two axes",
    (
        "statistics/selection",
        "best = min(usable, key=lambda k: float(sums[k].sum()))",
        "sums[k].mean",
    ): "all models have the same number of groups",
    (
        "functional/decomposition",
        "inside = confidence.clamp(torch.finfo(torch.float64).tiny, 1 - torch.finfo(torch.float64).eps / 2)",
        "3",
    ): "rounded to the same number, the next below 1",
    **{(module, line, "False"): "a check that cannot fail" for module, line in _EQUAL_LENGTHS},
}
"""Why a change cannot be noticed, by (module, line, expression after the change)."""
