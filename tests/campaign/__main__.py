"""The campaign: `python -m tests.campaign fuzz|kill|disk|odd-machines|mutate --minutes N --seed S`.

- fuzz: damaged folders, calibrators, results and command lines, run in this process. Each is handled if the numbers are
  right by an independent reader, or if it is refused in one sentence with exit status 2; everything else is a defect.
- kill: processes killed at random moments and while they replace their output.
- disk: outputs on a disk that is full.
- odd-machines: no home, no cache, read-only package, another user, other encodings, nonsense of a launcher.
- mutate: changes in the code of the core that the tests must notice.

The exit status is 1 if there was a defect. A seed determines the mutants, not how many of them fit into the minutes.
"""

from __future__ import annotations

import argparse
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one part of the campaign and print its table."""
    parser = argparse.ArgumentParser("python -m tests.campaign", description=__doc__.split("\n\n")[0])
    parser.add_argument("part", choices=("fuzz", "kill", "disk", "odd-machines", "mutate"))
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--number", type=int, help="stop after so many mutants or kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="fuzz, mutate: processes")
    parser.add_argument("--first", type=int, default=0, help="fuzz: number of the first mutant")
    parser.add_argument("--methods", nargs="+", help="fuzz: calibrators to attack, with ts and vector; default all")
    chosen = parser.parse_args(arguments)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # outputs are compared bit by bit, and a GPU rounds otherwise than a CPU
    if chosen.minutes is None and chosen.number is None:
        chosen.minutes = 1.0
    return _PARTS[chosen.part](chosen)


def _fuzz(chosen: argparse.Namespace) -> int:
    from segcal.calibrators import methods
    from tests.campaign.fuzz import fuzz
    from tests.campaign.report import defects, fuzz_table

    tally = fuzz(
        chosen.seed,
        mutants=chosen.number,
        minutes=chosen.minutes,
        workers=chosen.workers,
        methods=chosen.methods or methods(),
        first=chosen.first,
    )
    print(fuzz_table(tally))
    if tally.causes:
        print(f"\n{defects(tally)}")
    print(f"\nseed {chosen.seed}, mutants from {chosen.first}: {tally.tried:,} tried in {tally.seconds:.0f} s")
    return int(tally.defects > 0)


def _kill(chosen: argparse.Namespace) -> int:
    from tests.campaign.kill import kill
    from tests.campaign.report import kill_table

    found = kill(chosen.seed, number=chosen.number, minutes=chosen.minutes)
    print(kill_table(found, "killed"))
    print(f"\nseed {chosen.seed}: {len(found.defects)} defects", *found.defects, sep="\n")
    return int(bool(found.defects))


def _disk(chosen: argparse.Namespace) -> int:
    from tests.campaign.disk import disk
    from tests.campaign.report import kill_table

    found = disk(chosen.seed, number=chosen.number, minutes=chosen.minutes)
    print(kill_table(found, "space"))
    print(f"\nseed {chosen.seed}: {len(found.defects)} defects", *found.defects, sep="\n")
    return int(bool(found.defects))


def _odd_machines(chosen: argparse.Namespace) -> int:
    from tests.campaign.machines import odd_machines
    from tests.campaign.report import table

    rows, complaints = odd_machines(chosen.seed)
    print(table(["machine", "commands", "done", "refused", "defects"], rows))
    print(f"\n{len(complaints)} defects", *complaints, sep="\n")
    return int(bool(complaints))


def _mutate(chosen: argparse.Namespace) -> int:
    from tests.campaign.mutate import mutate
    from tests.campaign.report import mutation_table

    found = mutate(chosen.seed, number=chosen.number, minutes=chosen.minutes, workers=chosen.workers)
    print(mutation_table(found))
    if found.left_out:
        print(f"\nleft out, as they fail without any change: {len(found.left_out)}", *found.left_out, sep="\n")
    print(f"\nseed {chosen.seed}, survivors: {len(found.survivors)}", *found.survivors, sep="\n")
    return int(bool(found.survivors))


_PARTS = {"fuzz": _fuzz, "kill": _kill, "disk": _disk, "odd-machines": _odd_machines, "mutate": _mutate}

if __name__ == "__main__":
    sys.exit(main())
