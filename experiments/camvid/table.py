"""The table, from the results that exist: next to the paper's, by video, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.beside_paper import AS_PRINTED, joined, lines, markdown, of_cases, of_methods, pooled, renamed
from experiments.camvid.jobs import LOSSES, Job
from experiments.camvid.network import read_quality
from experiments.camvid.protocols import PROTOCOLS, Protocol
from experiments.datasets.camvid import sequence_of
from segcal.evaluation.results import Results
from segcal.files import read_json, staged_file
from segcal.statistics import Test
from segcal.types import InputError

Found = Mapping[Job, Results]


def print_tables(out: Path, test: Test = "wilcoxon") -> None:
    """Print every table that the finished jobs give, and write them to `tables.md`."""
    text = tables(out, test)
    with staged_file(out / "tables.md") as file:
        file.write_text(text + "\n", encoding="utf-8")
    print(text)


def tables(out: Path, test: Test = "wilcoxon") -> str:
    """All tables as Markdown."""
    parts, done = list[str](), {protocol: finished(out, protocol) for protocol in PROTOCOLS}
    for protocol, found in done.items():
        for network, seed in sorted({(job.network, job.seed) for job in found}):
            jobs = {job: found[job] for job in found if (job.network, job.seed) == (network, seed)}
            parts += _of_seed(out, protocol, jobs, test)
        parts += _over_seeds(found, protocol)
    parts += _both_forms(done["paper"], done["schedule"])
    if not parts:
        raise InputError(f"'{out}' holds no finished job; run `python -m experiments.camvid run` first")
    return "\n\n".join(parts)


def finished(out: Path, protocol: Protocol) -> dict[Job, Results]:
    """The results of each job that is done, in the order of the losses."""
    folders = [path.parent.parent for path in sorted(out.glob(f"*/{protocol}/report.json"))]
    jobs = sorted((Job.of(folder.name) for folder in folders), key=lambda job: (job.seed, list(LOSSES).index(job.loss)))
    return {job: Results.load(job.folder(out) / protocol / "results") for job in jobs}


def _of_seed(out: Path, protocol: Protocol, found: Found, test: Test) -> list[str]:
    first = next(iter(found))
    parts = [f"## FC-DenseNet{first.network}, seed {first.seed}, protocol: {protocol}"]
    parts += [_facts(out, protocol, job) for job in found]
    whole = joined(list(found.values()))
    best = next((name for name in ("FL+LTS", "LTS", "MMCE+LTS") if name in whole.methods), None)
    parts += [
        markdown(whole, reference=best, experiment="camvid", test=test),
        "Over all pixels together:",
        pooled(whole, intervals=False),
    ]
    for job, results in found.items():
        reference = job.method("LTS")
        if reference != best and reference in results.methods:
            parts += [f"### Against {reference}", markdown(results, reference=reference, test=test)]
    for video in sorted({sequence_of(name) for name in whole.frame.case}):
        own = of_cases(whole, [name for name in whole.frame.case.unique() if sequence_of(name) == video])
        count = own.frame.case.nunique()
        parts += [
            f"### Video {video} alone ({count} frames)",
            markdown(own, reference=best, metrics=("ece",), test=test),
        ]
    return parts


def _facts(out: Path, protocol: Protocol, job: Job) -> str:
    report = read_json(job.folder(out) / protocol / "report.json")
    quality = {name: f"{value:.4f}" for name, value in read_quality(job, out)["test"].items()}
    changed = {name: f"{count:,} of {pixels:,}" for name, (count, pixels) in report["changed"].items()}
    seconds = {name: round(value, 1) for name, value in report["seconds"].items()}
    text = [f"{job.name}: mIoU on test {quality}; labels changed {changed}; seconds {seconds}"]
    if protocol == "grouped":
        notes = report["notes"]
        text.append(f"epochs {notes['epochs']} (best of each fold {notes['best_epochs']}), share {notes['share']:.1f}")
        text.append(f"NLL left out by share {notes['nll']}")
    return "; ".join(text)


def _over_seeds(found: Found, protocol: Protocol) -> list[str]:
    """The mean of each seed next to each other: what differs less than they do is no difference."""
    parts = []
    for network in sorted({job.network for job in found}):
        own = {job: results for job, results in found.items() if job.network == network}
        seeds = sorted({job.seed for job in own})
        if len(seeds) < 2:
            continue
        columns = [("ece", "all"), ("ece", "boundary"), ("ece", "local-max"), ("nll", "all"), ("nll", "boundary")]
        rows = []
        for loss in LOSSES:
            by_seed = {job.seed: results for job, results in own.items() if job.loss == loss}
            for method in dict.fromkeys(name for results in by_seed.values() for name in results.methods):
                having = {s: of_methods(one, [method]) for s, one in by_seed.items() if method in one.methods}
                rows.append([method, *(" / ".join(_mean(having.get(s), *c) for s in seeds) for c in columns)])
        header = ["Method", *(f"{metric} {region}" for metric, region in columns)]
        title = f"## FC-DenseNet{network}, protocol: {protocol}, seeds {' / '.join(map(str, seeds))}"
        parts += [title, lines(header, rows)]
    return parts


def _both_forms(ours: Found, as_printed: Found) -> list[str]:
    """IBTS and LTS as segcal fits them and with `preset="paper"`, in one table for each network."""
    parts = []
    for job in ours:
        if job not in as_printed:
            continue
        own = of_methods(ours[job], [job.method(name) for name in ("UC", "TS", "IBTS", "LTS")])
        other = of_methods(as_printed[job], [job.method(name) for name in ("IBTS", "LTS")])
        both = joined([own, renamed(other, {name: name + AS_PRINTED for name in other.methods})])
        title = f"## {job.name}: IBTS and LTS in segcal's form and in the paper's"
        parts += [title, markdown(both, reference=None, experiment="camvid"), pooled(both, intervals=False)]
    return parts


def _mean(results: Results | None, metric: str, region: str) -> str:
    """The mean over images; a dash where the method was not measured."""
    if results is None:
        return "-"
    rows = results.frame[(results.frame.metric == metric) & (results.frame.region == region)]
    return f"{rows['value'].mean():.4f}"
