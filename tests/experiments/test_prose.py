"""Numbers in the sentences of the result pages are those of the archives, or of the tables that come from them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import camvid as camvid_experiment
from experiments.beside_paper import paper_numbers
from experiments.beyond.table import difference
from experiments.choices.__main__ import MEASURED as CHOSEN
from experiments.coco.__main__ import MEASURED as PICTURES
from experiments.lpba40.gathered import MEASURED, unpack
from experiments.pages import FOLDER
from experiments.passes.table import MEASURED as POOLED
from experiments.rows import unpack_rows

TASKS = ("`val` to 0001TP", "`val` to Seq05VD", "within 0001TP", "within Seq05VD", "VOC")
VIDEOS = TASKS[:4]
NLL, ECE_ALL, ECE_EDGE = ("NLL, all, % of TS", "ECE, all, % of TS", "ECE, boundary, % of TS")
VOC = ("voc-seed0", "voc-seed1")
POOLS, POOLS_BRIER = ("NLL, All, % of the better", "Brier score, All, % of the better")
SCENES = tuple(f"CamVid, {task}" for task in VIDEOS)
NETWORKS = Path(camvid_experiment.__file__).with_name("measured")
LOSSES = ("ce", "focal", "focal-cited", "mmce", "mmce-cited")
FORMS = ("LTS (preset paper)", "LTS floored (preset paper)")
NUMBER = r"[-+]?\d+(?:\.\d+)?"
DECIMAL = r"(?<![\w.])\d+\.\d+(?![\w.]*\d)"
NO_MEASUREMENT = {
    "camvid": {"0.05"},  # level of the tests
    "voc": {"0.05", "0.01"},  # level of the tests; a penalty
    "beyond-lts": set[str](),
    "volumes": {"0.05", "4.0"},  # level of the tests; a licence
    "passes": {"0.75", "0.60", "2.8"},  # a size; Dice of networks, as nnU-Net prints it; a version
}


@cache
def tables(page: str) -> tuple[tuple[list[str], dict[str, list[str]]], ...]:
    """Return the header and the rows of each table of a page, in their order."""
    found = list[tuple[list[str], dict[str, list[str]]]]()
    lines = (FOLDER / f"{page}.md").read_text(encoding="utf-8").splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ---") or not line.startswith("|"):
            continue
        if not before.startswith("|"):
            found.append((cells, {}))
        else:
            found[-1][1][cells[0]] = cells[1:]
    return tuple(found)


def cell(page: str, first: str, column: str, row: str, *, place: int = 0, part: int = 0) -> float:
    """Return a number of the table of this place among those with a first header cell and a column.

    A part is that of the seeds of `0.1 / 0.2`.
    """
    alike = [(head, rows) for head, rows in tables(page) if head[0] == first and column in head and row in rows]
    head, rows = alike[place]
    return float(re.findall(NUMBER, rows[row][head.index(column) - 1].replace("*", ""))[part])


def of_tasks(row: str, first: str = NLL, tasks: Sequence[str] = TASKS) -> list[float]:
    """Return a row of the summary of the five tasks, in percent of TS."""
    return [cell("beyond-lts", first, task, row) for task in tasks]


def high_ends(row: str, tasks: Sequence[str]) -> list[float]:
    """Return the upper ends of the intervals of the NLL of a row, in percent of TS."""
    (rows,) = [(head, own[row]) for head, own in tables("beyond-lts") if head[0] == NLL and row in own]
    return [float(rows[1][rows[0].index(task) - 1].partition(", ")[2].partition("]")[0]) for task in tasks]


def rows_against_ts() -> list[str]:
    return [row for head, own in tables("beyond-lts") if head[0] == NLL and head[1] == TASKS[0] for row in own]


@cache
def mean_nll() -> list[pd.Series]:
    """Return the mean NLL over volumes by method, for seed 0 and seed 1 of each data set."""
    rows = [measured.rows["labelled"].images for measured in unpack(MEASURED)]
    return [own[(own.region == "all") & (own.metric == "nll")].groupby("method")["value"].mean() for own in rows]


def below(row: str, base: str = "TS") -> list[float]:
    """Return by how many percent the NLL on volumes is lower."""
    return [100 * (1 - float(own[row] / own[base])) for own in mean_nll()]


def seeds(row: str, column: str, place: int) -> list[float]:
    return [cell("volumes", "Method", column, row, place=place, part=part) for part in (0, 1)]


def pools(row: str, first: str = POOLS) -> list[float]:
    return [-cell("passes", first, task, f"POOL {row}") for task in SCENES]


def pixels(row: str, region: str, metric: str, *, split: int = 0) -> float:
    """Return a number over all pixels of VOC."""
    with zipfile.ZipFile(PICTURES / f"{VOC[split]}.zip") as archive, archive.open("results/pooled.csv") as file:
        own = pd.read_csv(file).set_index(["method", "region", "metric"])["value"]
    return float(own[row, region, metric])


def ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def gaps(row: str, other: str, tasks: Sequence[str] = TASKS) -> list[float]:
    return [mine - theirs for mine, theirs in zip(of_tasks(row, NLL, tasks), of_tasks(other, NLL, tasks), strict=True)]


def moved(row: str, place: int) -> float:
    """Return the percentage of labels that a row changes in a table of VOC."""
    lines = re.findall(r"(?m)^Labels changed: (.*)\.$", (FOLDER / "voc.md").read_text(encoding="utf-8"))
    found = re.search(rf"{re.escape(row)} ([\d,]+) of ([\d,]+)", lines[place])
    assert found is not None
    changed, total = (int(count.replace(",", "")) for count in found.groups())
    return 100 * changed / total


def voc() -> Iterator[str]:
    rows = ("UC", "TS", "VS", "DirODIR", "IBTS", "LTS", "IBTS (preset paper)", "LTS (preset paper)")
    nll, second = ({row: pixels(row, "all", "nll", split=split) for row in rows} for split in (0, 1))
    edge = {row: pixels(row, "boundary", "nll") for row in ("UC", "VS")}
    ece, edges = ([100 * pixels(row, "boundary", "ece", split=split) for row in ("UC", "TS")] for split in (0, 1))
    yield f"TS lowers the pooled NLL from {nll['UC']:.3f} to {nll['TS']:.3f}"
    yield f"halves the pooled ECE at boundaries ({ece[0]:.1f} to {ece[1]:.1f} %)"
    yield f"from {second['UC']:.3f} to {second['TS']:.3f} ({edges[0]:.1f} to {edges[1]:.1f} %)"
    means = [[cell("voc", "Method", "ECE(%) All", row, place=place) for row in ("UC", "TS")] for place in (0, 2)]
    yield "raises the ECE in *All* from {:.1f} to {:.1f} %, with the second split from {:.1f} to {:.1f} %".format(
        *means[0], *means[1]
    )
    yield f"IBTS and LTS have an NLL of {nll['IBTS']:.3f} and {nll['LTS']:.3f}, with the second"
    yield f"the second split of {second['IBTS']:.3f} and {second['LTS']:.3f}: LTS"
    below, above = ([100 * (own[row] / own["TS"] - 1) for own in (nll, second)] for row in ("LTS", "IBTS"))
    yield f"LTS is below TS by {-below[0]:.0f} and {-below[1]:.0f} %, IBTS below and above it by"
    assert round(above[0]) == -1
    assert round(above[1]) == 1
    both = {f"{second[row]:.3f}" for row in ("IBTS (preset paper)", "LTS (preset paper)")}
    first = f"pooled NLL ({nll['IBTS (preset paper)']:.3f} and {nll['LTS (preset paper)']:.3f}; both"
    yield f"{first} {both.pop()} with the second split)"
    assert not both
    yield f"({nll['DirODIR']:.3f} against {nll['UC']:.3f}, {second['DirODIR']:.3f} against {second['UC']:.3f})"
    yield f"changes {moved('DirODIR', 0):.1f} and {moved('DirODIR', 2):.1f} % of the labels"
    searched = {row: pixels(row, "all", "nll", split=1) for row in (*rows, "DirODIR (searched)", "IsoReg", "ETS")}
    assert min(searched, key=lambda row: searched[row]) == "DirODIR (searched)"
    yield f"lowers the NLL to {searched['DirODIR (searched)']:.3f}, below every other method there"
    yield f"and changes {moved('DirODIR (searched)', 2):.1f} % of the labels"
    yield f"({nll['VS']:.3f}) and changes {moved('VS', 0):.1f} % of the labels"
    yield f"an NLL of {second['VS']:.3f} and changes {moved('VS', 2):.1f} %"
    (uc, uc_all), (ts, ts_all) = (
        [[cell("voc", "Method", f"ECE(%) Local-{kind}", row, place=k) for kind in ("Avg", "Max")] for k in (0, 1)]
        for row in ("UC", "TS")
    )
    yield f"UC in *Local-Avg* from {uc[0]:.2f} to {uc_all[0]:.2f} % and in *Local-Max*"
    yield f"in *Local-Max* from {uc[1]:.2f} to {uc_all[1]:.2f} %, that of TS"
    yield f"TS from {ts[0]:.2f} to {ts_all[0]:.2f} and from {ts[1]:.2f} to {ts_all[1]:.2f} %"
    miou = [cell("voc", "Method", "mIoU(%) of an image", row) for row in ("UC", "VS")]
    yield f"the mIoU per image falls from {miou[0]:.0f} to {miou[1]:.0f} %"
    yield f"its NLL at boundaries rises from {edge['UC']:.2f} to {edge['VS']:.2f}."


def beyond_lts() -> Iterator[str]:
    lts, held, paper = of_tasks("LTS"), of_tasks("LTS held out"), of_tasks("LTS paper", NLL, VIDEOS)
    one, two, three, four, five = (-value for value in lts)
    yield f"by {two:.1f} % from `val` to Seq05VD, by {three:.1f} and {four:.1f} % within the videos"
    yield f"within the videos and {five:.1f} % on VOC"
    yield f"and by {one:.1f} % on 0001TP"
    assert max(high_ends("LTS", TASKS[1:])) < 0
    assert [row for row in rows_against_ts() if max(high_ends(row, TASKS[:1])) < 0] == ["IBTS"]
    yield f"Only IBTS is below TS there by more than its interval ({of_tasks('IBTS', NLL, TASKS[:1])[0]:.1f} %)"
    yield f"*paper* is {paper[0]:.1f} % above TS on 0001TP"
    within = f"({-held[2]:.1f} and {-held[3]:.1f} % within the videos)"
    yield f"{within}, and {-held[1]:.1f} % on Seq05VD, but is {held[0]:.1f} % above TS on 0001TP"
    here = [-of_tasks(row, NLL, TASKS[4:])[0] for row in ("LTS paper", "LTS")]
    yield f"**On VOC the paper's form of LTS is lower**, by {here[0]:.1f} % against {here[1]:.1f} % below TS"
    yield f"The paper's own schedule is {paper[0]:.1f} % above TS there"
    raw, image = gaps("LTS raw", "LTS", VIDEOS), gaps("LTS with image", "LTS", VIDEOS)
    yield f"differ by at most {max(map(abs, raw)):.1f} points of NLL on CamVid"
    yield f"above TS ({of_tasks('LTS raw', NLL, VIDEOS)[0]:+.1f} %)"
    yield f"helps by {-min(image):.1f} points at most and costs {max(image):.1f} at most"
    low, high = ends(gaps("LTS sharpened", "LTS"))
    yield f"**For LTS the floor** gains {low:.1f} to {high:.1f} points of NLL in every task"
    sharpened = [gap < 0 for gap in gaps("CTS sharpened", "CTS with classes")]
    assert sharpened == [False, False, True, False, True]
    high, low = (-value for value in ends(of_tasks("CTS with pairs")))
    yield f"below TS in the mean of every task ({low:.1f} to {high:.1f} %)"
    both_splits = {row for row in rows_against_ts() if row not in ("SVS", "MSc", "auto") and max(of_tasks(row)) < 0}
    assert all(min(gaps(row, "CTS with pairs", VIDEOS)) >= 0 for row in both_splits)
    high, low = (-value for value in ends(of_tasks("CTS with pairs", ECE_EDGE, VIDEOS)))
    yield f"lower ECE at boundaries by {low:.0f} to {high:.0f} % there"
    yield "They raise ECE in *All* by {:.0f} to {:.0f} %".format(*ends(of_tasks("CTS with pairs", ECE_ALL, VIDEOS)))
    other, _, first, second, third_party = of_tasks("CMSap")
    yield f"({first:.1f} and {second:.1f} %) and fails from one to another ({other:+.1f} % on 0001TP)"
    yield f"on 0001TP) and on VOC ({third_party:+.1f} %)"
    both = [value for row in ("CMSap", "CMSop") for value in of_tasks(row, ECE_EDGE)]
    raised = [value for row in ("CMSap", "CMSop") for value in of_tasks(row, ECE_ALL, VIDEOS)]
    yield "boundaries ({:.0f} to {:.0f} %), and on CamVid in *All* ({:.0f} to {:.0f} %)".format(
        *ends(both), *ends(raised)
    )
    high, low = (-value for value in ends([*of_tasks("TS by class"), *of_tasks("CTS with classes")]))
    yield f"are below TS in the mean of every task too, by {low:.1f} to {high:.1f} %"
    yield f"**IBTS** is within {max(map(abs, of_tasks('IBTS', NLL, VIDEOS))):.1f} % of TS either way"
    high, low = (-value for value in ends(of_tasks("auto")))
    yield f"is below TS in NLL by {low:.1f} to {high:.1f} %**"


def volumes() -> Iterator[str]:
    paper = paper_numbers("lpba40")
    for row in ("UC", "LTS"):
        regions = ("all", "boundary", "local-avg", "local-max")
        yield f"{row} " + " / ".join(paper[row, "ece", region].partition("(")[0] for region in regions)
    one, two, three, four, five, six = below("LTS")
    yield f"by {one:.1f} and {two:.1f} % (hippocampus, 40 volumes), {three:.1f} and {four:.1f} % (200 volumes)"
    yield f"(200 volumes), {five:.1f} and {six:.1f} % (mouse)"
    assert max(end for place in range(6) for end in intervals("LTS", "NLL all", place)) < 0
    one, two, three, four, five, six = below("LTS (paper's schedule)")
    yield f"by {one:.1f} and {two:.1f}, {three:.1f} and {four:.1f}, {five:.1f} and {six:.1f} %. With 40 volumes"
    less = below("LTS", "LTS (paper's schedule)")
    assert [gain < 0 for gain in less] == [False, True, False, False, False, False]
    yield "by {:.1f} %; in the others segcal's form is below it, by {:.1f} to {:.1f} %".format(
        -less[1], *ends([gain for gain in less if gain > 0])
    )
    one, two, three, four, five, six = below("auto")
    yield f"by {one:.1f} and {two:.1f}, {three:.1f} and {four:.1f}, {five:.1f} and {six:.1f} %. It left out LTS"
    assert [gain > 0 for gain in below("auto", "LTS")] == [False, True, False, False, True, True]
    changed = [share for measured in unpack(MEASURED) for share in changed_by("dirichlet", measured.fits)]
    yield "DirODIR changes {:.1f} to {:.1f} % of the labels".format(*ends(changed))
    one, *_, five, six = below("DirODIR")
    yield f"({five:.1f} and {six:.1f} % below TS) and with 40 volumes and seed 0 ({one:.1f} %)"
    assert [nll.idxmin() == "DirODIR" for nll in mean_nll()] == [True, False, False, False, True, True]
    assert [gain > 0 for gain in below("DirODIR", "LTS")] == [True, False, False, False, True, True]
    uc, ts, lts = (seeds(row, "ECE(%) all", 0) for row in ("UC", "TS", "LTS"))
    yield f"UC has {uc[0]:.2f} and {uc[1]:.2f} % in *All*, TS {ts[0]:.2f} and {ts[1]:.2f}, LTS"
    yield f"LTS {lts[0]:.2f} and {lts[1]:.2f}."
    above = [cell("volumes", "Minus TS", "ECE(%) all", "LTS", place=place) for place in (2, 3)]
    yield f"LTS is above TS in *All* by {above[0]:.2f} and {above[1]:.2f} points"
    assert min(end for place in (2, 3) for end in intervals("LTS", "ECE(%) all", place)) >= 0
    mouse = seeds("UC", "ECE(%) all", 2)
    yield f"(an ECE of {mouse[0]:.2f} and {mouse[1]:.2f} % in *All*)"
    edge = [-cell("volumes", "Minus TS", "ECE(%) boundary", "LTS", place=place) for place in (4, 5)]
    yield f"in *Boundary* by {edge[0]:.2f} and {edge[1]:.2f} points"
    # the tables of each seed: every metric, of which ECE has a second one with every patch
    labelled, every = (
        [cell("volumes", "Method", "ECE(%) Local-Max", "TS", place=2 * k + part) for k in range(4)] for part in (0, 1)
    )
    rise = ends([two - one for one, two in zip(labelled, every, strict=True)])
    yield "for TS by {:.1f} to {:.1f} points".format(*rise)


def intervals(row: str, column: str, place: int) -> tuple[float, float]:
    """Return the interval of a difference to TS on volumes."""
    tables_of_differences = [(head, rows) for head, rows in tables("volumes") if head[0] == "Minus TS"]
    head, rows = tables_of_differences[place]
    low, high = re.findall(NUMBER, rows[row][head.index(column) - 1])[1:]
    return float(low), float(high)


def changed_by(method: str, fits: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the percentage of the labels of a job that a method changes."""
    counts = [fit["changed"] for fit in fits if fit["method"] == method]
    yield 100 * sum(changed for changed, _ in counts) / sum(voxels for _, voxels in counts)


def both(row: str, column: str) -> tuple[float, float]:
    """Return a number of CamVid's table for the first and the second network."""
    first, second = (cell("camvid", "Method", column, row, part=part) for part in (0, 1))
    return first, second


def percent(row: str, column: str) -> str:
    return "{:.1f} and {:.1f}".format(*(100 * value for value in both(row, column)))


def shares(row: str) -> str:
    """Return the percentage of labels that a row changes with both networks, as printed between the tables."""
    text = (FOLDER / "camvid.md").read_text(encoding="utf-8")
    return " and ".join(
        re.search(rf"ce-{seed}: labels changed: .*?\b{row} ([\d.]+)%", text)[1]  # type: ignore[index]
        for seed in (0, 1)
    )


def camvid() -> Iterator[str]:
    lts, ts, paper, bounded = (
        "{:.3f} and {:.3f}".format(*both(row, "nll all"))
        for row in ("LTS", "TS", "LTS (preset paper)", "LTS floored (preset paper)")
    )
    yield f"The NLL in *All* is {lts} against {ts}, the"
    yield f"ECE at boundaries {percent('LTS', 'ece boundary')} % against {percent('TS', 'ece boundary')} %"
    yield f"in *Local-Max* {percent('LTS', 'ece local-max')} % against {percent('TS', 'ece local-max')} %"
    local, one = ("{:.2f} and {:.2f}".format(*(100 * value for value in both(row, "ece all"))) for row in ("LTS", "TS"))
    yield f"In *All* the ECE is {local} % against {one} %"
    yield f"Its NLL is {paper}, above TS"
    yield f"that of TS ({percent('LTS (preset paper)', 'ece boundary')} %)"
    yield f"With a lower bound on the temperatures the NLL is {bounded}"
    classwise = ("TS by class", "CTS with classes")
    yield "**, {:.3f} and {:.3f}, and {:.3f} and {:.3f}".format(
        *(value for row in classwise for value in both(row, "nll all"))
    )
    kept = [both(row, "nll all") for row in keeping_rows()]
    assert tuple(map(min, zip(*kept, strict=True))) == tuple(
        map(min, zip(*(both(row, "nll all") for row in classwise), strict=True))
    )
    alone = [
        cell("camvid", "Method", "NLL", row, place=place)
        for row in ("LTS", "CTS with classes", "TS")
        for place in (1, 4)
    ]
    yield "the NLL of LTS is {:.3f} and {:.3f}, of CTS with classes {:.3f} and {:.3f}".format(*alone[:4])
    yield "and of TS {:.3f} and {:.3f}".format(*alone[4:])
    yield f"{shares('VS')} %, and {shares('DirODIR')} % of the pixels"
    least = [both(row, "nll all")[0] for row in ("VS", "DirODIR")]
    yield "the lowest NLL over all frames ({:.3f} and {:.3f})".format(*least)
    vs, dirichlet, uncalibrated = (percent(row, "ece boundary") for row in ("VS", "DirODIR", "UC"))
    yield f"({vs} %, and {dirichlet} %, against {uncalibrated} %)"
    yield "takes the paper's penalty of 0.01"
    uc = "{:.2f} and {:.2f}".format(*(100 * value for value in both("UC", "ece all")))
    yield f"(an ECE of {uc} % in *All* against {paper_numbers('camvid')['UC', 'ece', 'all'].partition('(')[0]} %)"
    miou = [100 * cell("camvid", "Network", "test", f"fc-densenet103-ce-{seed}") for seed in (0, 1)]
    yield "their mIoU on `test` is {:.1f} and {:.1f} %".format(*miou)
    yield from losses()


def keeping_rows() -> list[str]:
    """Return the rows of the tables of both seeds whose method keeps every label."""
    moving = ("UC", "VS", "DirODIR", "DirODIR (searched)")
    beside = [rows for head, rows in tables("camvid") if "nll all" in head and " / " in str(rows)]
    return [row for rows in beside for row in rows if row not in moving]


def losses() -> Iterator[str]:
    """Yield what the page of CamVid says of the networks of the third seed."""

    def of(column: str, loss: str, method: str = "") -> float:
        row = "+".join(filter(None, (loss, method))) or "UC"
        first = 0 if loss else 6  # after both seeds, each of which is shown as a whole and for two videos
        return cell("camvid", "Method", column, row, place=first)

    focal, cited, ours, theirs = joint = ("FL", "FL (cited)", "MMCE", "MMCE (cited)")
    right, ece, after = (
        {loss: of(column, loss, method) for loss in ("", *joint)}
        for column, method in (("Accuracy(%)", ""), ("ECE(%) All", ""), ("ECE(%) All", "TS"))
    )
    yield f"{right['']:.1f} % of the pixels have the right label with cross-entropy, {right[focal]:.1f} %"
    yield f"with focal loss (FL), {right[cited]:.1f} % with the gamma of the cited code, {right[ours]:.1f} % with MMCE"
    yield f"and {right[theirs]:.1f} % with MMCE as cited"
    yield f"is {ece[focal]:.1f} % (FL) and {ece[cited]:.1f} % (as cited) against {ece['']:.1f} % with cross-entropy"
    yield f"after TS it is {after[focal]:.1f}, {after[cited]:.1f} and {after['']:.1f} %"
    nll = {loss: [of("NLL", loss, method) for method in ("", "TS", *FORMS)] for loss in ("", *joint)}
    yield f"lower ECE ({ece[theirs]:.1f} %) and NLL ({nll[theirs][0]:.3f} against {nll[''][0]:.3f})"
    yield f"The paper's {paper_numbers('camvid')['FL', 'ece', 'all'].partition('(')[0]} % of FL"
    shown = [" / ".join(f"{value:.3f}" for value in nll[loss][1:]) for loss in ("", focal, theirs)]
    yield "is {} with cross-entropy, {} with FL and {} with MMCE as cited".format(*shown)
    assert [loss for loss, (_, one, local, _) in nll.items() if local < one] == [ours]
    assert all(floored < one for _, one, _, floored in nll.values())
    yield f"mIoU on `val` by up to {max(map(rounding, LOSSES)):.3f}"


def rounding(loss: str) -> float:
    """Return how much the mIoU on `val` of a network changed with the rounding of its weights."""
    with zipfile.ZipFile(NETWORKS / f"fc-densenet103-{loss}-2.zip") as archive:
        trained, scored = (json.loads(archive.read(name)) for name in ("training.json", "logits/segcal.json"))
    return abs(float(trained["miou"]["val"]) - float(scored["miou"]["val"]["all"]))


def above_cts() -> Iterator[tuple[str, str]]:
    """Yield the pools with passes of one network, and the task, whose NLL is above that of CTS."""
    for head, rows in tables("passes"):
        for task in head[2:] if head[0] == POOLS else ():
            reference = cell("passes", POOLS, task, "CTS") if "CTS" in rows and task == SCENES[0] else 0.0
            for row in (row for row in rows if re.match("POOL (?!free|other)", row)):
                if cell("passes", POOLS, task, row) > reference:
                    yield row, task


def passes() -> Iterator[str]:
    five, seven, two, mirror = (
        pools(row) for row in ("mirror, scales, both", "all views", "mirror, scale 0.75", "mirror")
    )
    alike = "POOL other networks"
    mouse, volumes_, views = (
        -cell("passes", POOLS, "Mouse brain, 37 structures", alike),
        -cell("passes", POOLS, "Hippocampus, 200 volumes", alike),
        pools("all views, other networks"),
    )
    yield f"on all three data sets**: by {mouse:.1f} % on mouse brains, {volumes_:.1f} % on the hippocampus and"
    yield "{:.1f} to {:.1f} % on CamVid, against the better".format(*ends(pools("other networks")))
    yield "alone lower it by more than one other network in three of the four tasks of CamVid"
    assert sum(f > o for f, o in zip(five, pools("other networks"), strict=True)) == 3
    yield "With seven views of the first network it is {:.1f} to {:.1f} % on CamVid".format(*ends(views))
    yield "lower the NLL on CamVid by {:.1f} to {:.1f} %**".format(*ends(five))
    yield "falls by {:.1f} to {:.1f} %".format(*ends(pools("mirror, scales, both", POOLS_BRIER)))
    yield "Seven passes are hardly different ({:.1f} to {:.1f} %)".format(*ends(seven))
    yield "lower it by {:.1f} and {:.1f} % within".format(*two[2:])
    yield f"by {two[1]:.1f} % from `val` to Seq05VD, and not from `val` to 0001TP ({-two[0]:+.1f} %)"
    yield "A mirrored pass alone changes it by {:+.1f} to {:+.1f} %".format(*ends([-value for value in mirror]))
    sides = partial(cell, "passes", column="Mouse brain, 37 structures")
    yield f"A mirrored pass lowers the NLL by {-sides(first=POOLS, row='POOL mirror'):.1f} % on mouse brains"
    yield f"The Brier score falls by {-sides(first=POOLS_BRIER, row='POOL mirror'):.1f} %"
    yield f"Three mirrors are hardly better ({-sides(first=POOLS, row='POOL 3 mirrors'):.1f} %)"
    yield f"({cell('passes', POOLS, 'Hippocampus, 200 volumes', 'POOL mirror'):+.1f} %)"
    yield f"CTS is {cell('passes', POOLS, SCENES[0], 'CTS'):.1f} % above TS"
    (above,) = above_cts()
    assert above == ("POOL mirror, brightness", SCENES[2])
    yield f"mirror and brightness within 0001TP, by {cell('passes', POOLS, SCENES[2], above[0]):.1f} %"
    more = [100 * (1 - (100 - f) / (100 - s)) for f, s in zip(pools("free labels all views"), seven, strict=True)]
    yield "lower by another {:.0f} to {:.0f} % on CamVid".format(*ends(more))
    ece = [cell("passes", "Method", "ECE(%) all", row, place=3) for row in ("POOL mirror, scale 0.75", "TS")]
    yield "({:.2f} % against {:.2f} % within Seq05VD with two passes)".format(*ece)
    flips = [-cell("passes", POOLS, "Hippocampus, flips in training", f"POOL {row}") for row in ("mirror", "7 mirrors")]
    yield "one lowers the NLL by {:.1f} % and seven (`passes=True` in 3D) by {:.1f} %".format(*flips)
    deployed = partial(cell, "passes", POOLS, "Hippocampus, flips in training, mean of 8 mirrors")
    yield f"has an NLL {deployed('CTS of one pass'):.1f} % above CTS fitted on the mean"
    yield f"is {-deployed('POOL 7 mirrors'):.1f} % below CTS fitted on the mean"
    several, one = (
        cell("passes", "Method", "NLL all", row, place=place) for row, place in (("TS", -3), ("TS of one pass", -1))
    )
    yield f"({one:.4f} against {several:.4f})"
    own, folds = unpack_rows(POOLED), " of single folds"
    own = own[own["part"] == "nnunet"]
    ece = [cell("passes", "Method", "ECE(%) all", row, place=place) for row, place in (("TS" + folds, -1), ("TS", -2))]
    yield f"has an ECE of {ece[0]:.1f} % in *All*, TS fitted on the mean {ece[1]:.1f} %"
    ece = [
        cell("passes", "Method", "ECE(%) all", row, place=place) for row, place in (("CTS" + folds, -1), ("CTS", -2))
    ]
    yield f"for CTS it is {ece[0]:.1f} and {ece[1]:.1f} %"
    for metric, excludes in (("ece", True), ("nll", False)):
        cells = [difference(own, row + folds, row, metric, "all") for row in ("TS", "CTS")]
        assert [float(text.partition("[")[2].partition(",")[0]) > 0 for text in cells] == [excludes] * 2
    yield "which is {:.1f} and {:.1f} % higher".format(*(float(text.split()[0]) for text in cells))
    uc, ts_one, cts_one = (cell("passes", "Method", "NLL all", row, place=-1) for row in ("UC", "TS", "CTS"))
    yield f"the NLL from {uc:.3f} to {ts_one:.3f} (TS) and {cts_one:.3f} (CTS)"


PAGES = {"camvid": camvid, "voc": voc, "beyond-lts": beyond_lts, "volumes": volumes, "passes": passes}


@pytest.mark.parametrize("page", NO_MEASUREMENT)
def test_every_number_of_a_sentence_is_that_of_a_table(page: str) -> None:
    text = re.sub(r"```.*?```", "", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = " ".join(" ".join(line for line in text.splitlines() if not line.startswith(("|", "Networks: "))).split())
    said = list(PAGES[page]()) if page in PAGES else []
    assert [sentence for sentence in said if sentence not in prose] == []
    known = {number for sentence in said for number in re.findall(DECIMAL, sentence)}
    assert set(re.findall(DECIMAL, prose)) - known - NO_MEASUREMENT[page] == set()


def test_the_guide_of_passes_says_what_the_results_say() -> None:
    text = " ".join((FOLDER.parent / "guide" / "passes.md").read_text(encoding="utf-8").split())
    five, two = pools("mirror, scales, both"), pools("mirror, scale 0.75")
    said = "by {:.1f} to {:.1f} % against the better of `ts` and `cts`, in all four tasks".format(*ends(five))
    assert said in text
    assert f"by {max(two):.1f} % at most, and from one video to another by {two[1]:.1f} % or not at all" in text
    assert f"({-two[0]:+.1f} %)" in text
    assert f"= {1 + 2 * (0.75**2 + 1.25**2):.2f} times the pixels of the image" in text
    sizes = -cell("passes", POOLS, "Hippocampus, 200 volumes", "POOL mirror, scales")
    assert f"On volumes rescaled passes helped by {sizes:.1f} % or not at all" in text
    flips = -cell("passes", POOLS, "Hippocampus, flips in training", "POOL 7 mirrors")
    assert f"the seven mirrors of `True` lowered the NLL by {flips:.1f} %" in text


def test_the_guide_of_passes_says_what_its_variants_show() -> None:
    rows = pd.read_csv(CHOSEN / "pooling.csv", keep_default_na=False)
    (base,) = rows[rows["variant"] == "ts"]["nll"]
    change = rows.pivot_table(index="variant", columns="passes", values="nll").drop(columns="") / base * 100
    warm = change.loc["and members at T0"]
    assert -0.1 <= (change.loc["and a T for each member"] - warm).min() < 0
    for name in ("weight capped per pixel instead of lifting", "geometric, learned"):
        assert (change.loc[name] > warm).all()


def test_the_guide_of_decisions_says_what_its_rules_reach() -> None:
    rows = pd.read_csv(CHOSEN / "decisions.csv")
    missed, inside = (rows[rows["rule"] == rule] for rule in ("risk", "level"))
    assert (missed["mean"] <= missed["asked"]).all()
    assert (inside["mean"] - inside["asked"]).abs().max() <= 0.005
    (few,) = missed[(missed["class"] == "car") & (missed["asked"] == 0.1)]["few"]
    assert few > 0.9


def new(row: str, seed: int) -> float:
    """Return the NLL on 0001TP of a network that was trained for the page of CamVid, fitted on `val`."""
    return cell("camvid", "Method", "NLL", row, place=(1, 4)[seed])


def methods() -> Iterator[str]:
    lts, paper = below("LTS")[:4], of_tasks("LTS paper", NLL, VIDEOS)
    yield "its NLL is {:.0f} to {:.0f} % below that of TS".format(*ends(lts))
    above = [cell("volumes", "Minus TS", "ECE(%) all", "LTS", place=place) for place in range(4)]
    yield "its ECE {:.1f} to {:.1f} points above".format(*ends(above))
    yield f"raised NLL by {paper[0]:.0f} %"
    yield f"gains little and is at most {max(of_tasks('CTS')):.1f} % worse"
    high, low = (-value for value in ends(of_tasks("CTS with pairs")))
    yield f"its NLL is {low:.1f} to {high:.1f} % below that of TS"
    classes = [100 * (new("CTS with classes", k) / new("TS", k) - 1) for k in (0, 1)]
    yield "its NLL on that video is {:.1f} and {:.1f} % above that of TS".format(*classes)
    local = [100 * (new("LTS", k) / new("TS", k) - 1) for k in (0, 1)]
    yield f"on another video the NLL was up to {max(local):.1f} % [above that of TS]"
    few = [gain for gain, place in zip(below("LTS"), range(6), strict=True) if place not in (2, 3)]
    yield "With 4 to 10 volumes to fit on and 2 or 3 to validate on, its NLL was {:.0f} to {:.0f} % below".format(
        *ends(few)
    )
    floor = gaps("CTS sharpened", "CTS with classes")
    yield "lowers the NLL on other videos by {:.0f} to {:.0f} %".format(*ends(floor[:2]))
    yield f"and costs at most {-min(floor):.0f} %"
    sce, sharpened = (
        [cell("beyond-lts", "minus TS, % of it", "SCE, all", row, place=place) for place in range(5)]
        for row in ("CTS with classes", "CTS sharpened")
    )
    ece = [
        a - b for a, b in zip(of_tasks("CTS with classes", ECE_ALL), of_tasks("CTS sharpened", ECE_ALL), strict=True)
    ]
    raised = max(a - b for a, b in zip(sce, sharpened, strict=True))
    yield f"raises SCE by up to {raised:.0f} points relative to TS, and on VOC the ECE in *All* by {ece[4]:.0f};"
    assert max(ece[:4]) < 0


def test_the_pages_of_methods_say_what_the_results_say() -> None:
    folder = FOLDER.parent / "methods"
    pages = ("index.md", "contextual-temperature-scaling.md", "local-temperature-scaling.md", "choosing.md")
    text = " ".join(" ".join((folder / page).read_text(encoding="utf-8") for page in pages).split())
    assert [sentence for sentence in methods() if sentence not in text] == []
