"""Command lines that nobody should type, and that somebody will."""

from __future__ import annotations

from random import Random

VALUES = (
    "", "0", "-1", "1", "2", "7", "nan", "inf", "-inf", "1e400", "1e30", "0.0", "2.5", "100000000",
    "99999999999999999999999",
    "-99999999999999999999", "x", "[/red]", "[bold]", "\x1b[31m", "\udcff", "ü", "a\nb", "tables", "UC", "TS", "all",
    ".", "..", "/",
    "data", "results", "calibrator", "data/logits/a1.npy", "results/segcal.json", "out", "out/", "new/deep/out",
    "/dev/null",
    "out.html", "x" * 300, "\0", "--", "-", "=", "{}", "None",
)  # fmt: skip
OPTIONS = {
    "fit": (
        "--method", "--split", "--validation", "--num-classes", "--ignore-index", "--background", "--scores",
        "--labels", "--out",
        "--seed", "--epochs", "--device", "--set", "--logits-only",
        "--set=bounds=", "--set=bins=", "--set=batch_size=", "--set=learning_rate=", "--set=root_offset=",
    ),
    "apply": ("--dtype", "--split", "--scores", "--temperature", "--out"),
    "diagnose": ("--maps", "--split", "--num-classes", "--ignore-index", "--background", "--labels", "--scores"),
    "evaluate": (
        "--bins", "--form", "--patch-size", "--patch-sizes", "--patches", "--interval", "--floor", "--seed",
        "--reference", "--test",
        "--average", "--out", "--page", "--cases", "--calibrators", "--split",
    ),
    "table": ("--reference", "--test", "--average", "--out", "--floor"),
    "report": ("--reference", "--test", "--average", "--out"),
    "fuse": ("--method", "--target", "--alpha", "--beta", "--patch", "--nonnegative", "--out"),
}  # fmt: skip
LARGE = ("--patches", "--epochs", "--set=batch_size=")
"""Options whose large values ask for hours of honest work."""


def odd_arguments(rng: Random, args: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line with one to three odd options, another input, or an input left out."""
    changed = list(args)
    kind = rng.randrange(12)
    if kind == 0:
        del changed[rng.randrange(1, len(changed))]
    elif kind == 1:
        changed[rng.randrange(1, len(changed))] = rng.choice(VALUES)
    else:
        for _ in range(rng.choices((1, 2, 3), (6, 2, 1))[0]):
            option = rng.choice(OPTIONS[args[0]])
            value = rng.choice(VALUES)
            if option in LARGE and value.startswith(("1000", "9999")):
                value = "3"
            joined = [f"{option}{value}"] if option.endswith("=") else [option, value]
            changed += joined if rng.random() < 0.97 else [option]
    return tuple(changed)
