"""The table, from the results that exist: next to the paper's, by video, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.beside_paper import AS_PRINTED, joined, lines, markdown, of_cases, of_methods, pooled, renamed
from experiments.camvid.jobs import LOSSES, Job
from experiments.camvid.network import LOG, LOGITS, read_quality
from experiments.camvid.protocols import PROTOCOLS, Protocol
from experiments.datasets.camvid import sequence_of
from segcal.evaluation.results import Results
from segcal.files import read_json
from segcal.statistics import Test
from segcal.types import InputError

Found = Mapping[Job, Results]
_IN_BOTH = ("IBTS", "LTS", "LTS floored")
_REFERENCES = ("FL+LTS", "FL+LTS" + AS_PRINTED, "LTS", "LTS" + AS_PRINTED, "MMCE+LTS")
"""Methods that the others are tested against, the first that is there, as in the paper."""
_CHOICES = {"best_epoch": "epoch", "share": "share of the tree"}


def tables(out: Path, test: Test = "wilcoxon") -> str:
    """All tables as Markdown: the two forms of the paper's protocol together, then the other protocols."""
    others = [protocol for protocol in PROTOCOLS if protocol not in ("paper", "schedule")]
    groups = {"the paper's frames": both_forms(out)}
    groups |= {f"protocol {protocol}": finished(out, protocol) for protocol in others}
    parts = _networks(out)
    for title, found in groups.items():
        parts += _over_seeds(out, found, title)
        for network, seed in sorted({(job.network, job.seed) for job in found}):
            jobs = {job: found[job] for job in found if (job.network, job.seed) == (network, seed)}
            parts += [f"## FC-DenseNet{network}, seed {seed}: {title}", *_facts(out, jobs), *_of_seed(jobs, test)]
    if not any(groups.values()):
        raise InputError(f"'{out}' holds no finished job; run `python -m experiments.camvid run` first")
    return "\n\n".join(parts)


def _networks(out: Path) -> list[str]:
    """The training of each network, and the mIoU of its labels."""
    rows = []
    for path in sorted(out.glob(f"*/{LOG}")):
        log, job = read_json(path), Job.of(path.parent.name)
        if not (path.parent / LOGITS).is_dir():
            continue
        epochs, quality = log["epochs"], read_quality(job, out)
        losses = ", ".join(f"{epochs[k][1]:.3f}" for k in (0, len(epochs) // 2, -1))
        miou = [log["miou"]["train"], quality["val"]["all"], quality["test"]["all"]]
        videos = " / ".join(f"{name} {value:.3f}" for name, value in quality["test"].items() if name != "all")
        cells = [job.name, str(len(epochs)), f"{log['seconds']:.0f}", losses, *(f"{value:.3f}" for value in miou)]
        rows.append([*cells, videos])
    header = ["Network", "epochs", "seconds", "loss: first, middle, last"]
    header += ["mIoU: train", "val", "test", "videos of test"]
    return ["## Networks", lines(header, rows)] if rows else []


def finished(out: Path, protocol: Protocol) -> dict[Job, Results]:
    """The results of each job that is done, in the order of the losses."""
    folders = [path.parent.parent for path in sorted(out.glob(f"*/{protocol}/report.json"))]
    jobs = sorted((Job.of(folder.name) for folder in folders), key=lambda job: (job.seed, list(LOSSES).index(job.loss)))
    return {job: Results.load(job.folder(out) / protocol / "results") for job in jobs}


def _of_seed(found: Found, test: Test) -> list[str]:
    whole = joined(list(found.values()))
    best = next((name for name in _REFERENCES if name in whole.methods), None)
    parts = [
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
        title = f"### Video {video} alone ({count} frames)"
        parts += [title, markdown(own, reference=best, metrics=("ece",), test=test)]
    return parts


def _facts(out: Path, found: Found) -> list[str]:
    """Labels that change, and what was chosen on the frames of `val`."""
    parts = []
    for job in found:
        reports = {path.parent.name: read_json(path) for path in sorted(job.folder(out).glob("*/report.json"))}
        changed, chosen = dict[str, str](), dict[str, str]()
        for protocol, report in reports.items():
            for name, (count, pixels) in report["changed"].items():
                form = AS_PRINTED * (protocol == "schedule")
                changed |= {name + form: f"{count / pixels:.1%}"} if count else {}
                chosen |= {name + form: text} if (text := _chosen(report["fits"][name])) else {}
        parts.append(f"{job.name}: labels changed: {_listed(changed) or 'none'}. Chosen on `val`: {_listed(chosen)}.")
    return parts


def _chosen(fit: Mapping[str, Any]) -> str:
    details = fit["details"]
    if "search" in details:
        return f"penalty {min(details['search'], key=lambda tried: tried['validation_nll'])['penalty']:g}"
    told = [f"{title} {details[name]:g}" for name, title in _CHOICES.items() if details.get(name) is not None]
    return ", ".join(told)


def _listed(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {text}" for name, text in texts.items())


def _over_seeds(out: Path, found: Found, title: str) -> list[str]:
    """The mean of each seed next to each other, for methods that all seeds have: what differs less is no difference.

    Seeds whose networks were trained for other numbers of epochs are not put side by side.
    """
    parts = []
    trained = {job: (job.network, len(read_json(job.folder(out) / LOG)["epochs"])) for job in found}
    for network, epochs in sorted({*trained.values()}):
        alike = {job: results for job, results in found.items() if trained[job] == (network, epochs)}
        seeds = sorted({job.seed for job in alike})
        if len(seeds) < 2:
            continue
        columns = [("ece", "all"), ("ece", "boundary"), ("ece", "local-max"), ("nll", "all"), ("nll", "boundary")]
        rows = []
        for loss in LOSSES:
            by_seed = {job.seed: results for job, results in alike.items() if job.loss == loss}
            if by_seed.keys() < {*seeds}:
                continue
            for method in (
                name for name in by_seed[seeds[0]].methods if all(name in by_seed[s].methods for s in seeds)
            ):
                own = [of_methods(by_seed[seed], [method]) for seed in seeds]
                rows.append([method, *(" / ".join(_mean(one, *c) for one in own) for c in columns)])
        header = ["Method", *(f"{metric} {region}" for metric, region in columns)]
        parts += [f"## FC-DenseNet{network}, seeds {' / '.join(map(str, seeds))}: {title}", lines(header, rows)]
    return parts


def both_forms(out: Path) -> Found:
    """The methods of the paper's frames, with IBTS and LTS as segcal fits them and with `preset="paper"`."""
    ours, as_printed = finished(out, "paper"), finished(out, "schedule")
    both = dict[Job, Results]()
    for job in sorted({*ours, *as_printed}, key=lambda job: (job.seed, list(LOSSES).index(job.loss))):
        parts = [ours[job]] if job in ours else []
        if job in as_printed:
            other = as_printed[job]
            known = {name for part in parts for name in part.methods} - {*map(job.method, _IN_BOTH)}
            own = of_methods(other, [name for name in other.methods if name not in known])
            parts.append(renamed(own, {job.method(name): job.method(name) + AS_PRINTED for name in _IN_BOTH}))
        both[job] = joined(parts)
    return both


def _mean(results: Results, metric: str, region: str) -> str:
    """The mean over images."""
    rows = results.frame[(results.frame.metric == metric) & (results.frame.region == region)]
    return f"{rows['value'].mean():.4f}"
