"""The automatic choice: what it takes on scenes whose truth is known, and that groups are never split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter

import segcal
from segcal.calibrators import AutomaticChoice, Calibrator, create
from segcal.calibrators import automatic as module
from segcal.calibrators.shared import context_fit, search
from segcal.calibrators.shared.context_sample import ContextSample, draw_sample
from segcal.calibrators.shared.cross_validation import CrossValidation, Score
from segcal.calibrators.shared.search import Plan, Search, cases_apart, losses_at
from segcal.calibrators.shared.survey import summed_nll
from segcal.cases import CaseStream
from segcal.cases import stream as stream_module
from segcal.data.sample.scenes import simulate
from segcal.functional.temperature import likelihood
from segcal.integrations.export import export_onnx
from segcal.progress import stages_shown
from segcal.types import Case, InputError
from support.contracts import CHECKS, Subject
from support.fits import choose_among_few
from support.scenes import simulated

QUICK = ("ts", "ets")


def scenes(count: int, variation: Any = "global", **settings: Any) -> list[Case]:
    return simulated(count, size=(32, 32), variation=variation, **settings)


def heavy_tailed(count: int) -> list[Case]:
    """A tenth of the pixels is labelled at random however sure the network is, which ETS can say and TS cannot."""
    rng = np.random.default_rng(0)
    cases = []
    for case in scenes(count, temperatures=(1.0, 1.0)):
        chance = rng.uniform(size=(32, 32)) < 0.1
        cases.append(replace(case, labels=np.where(chance, rng.integers(0, 5, (32, 32)), np.asarray(case.labels))))
    return cases


def grouped(cases: Iterable[Case], size: int) -> list[Case]:
    return [replace(case, group=f"video {k // size}") for k, case in enumerate(cases)]


def auto(cases: Any, *, candidates: tuple[str, ...] = QUICK, **settings: Any) -> AutomaticChoice:
    return AutomaticChoice(5, image_channels=1, candidates=candidates, time_limit=None).fit(cases, **settings)


# --------------------------------------------------------------------------------------------------------------------
# what it takes


def test_one_temperature_for_all_is_ts() -> None:
    cases = scenes(8)
    found = auto(cases)
    details = found.fit_report_.details
    assert details["chosen"] == "ts"
    assert details["why"].startswith("ts is chosen: in cross-validation over 8 images its NLL is ")
    assert "within one standard error of the best, ets, which lowers it by " in details["why"]
    assert torch.equal(found.applied.inverse_temperature, create("ts", 5).fit(cases).inverse_temperature)
    assert details["chosen_details"] == create("ts", 5).fit(cases).fit_report_.details


def test_heavy_tails_are_ets() -> None:
    cases = heavy_tailed(8)
    found, alone = auto(cases), create("ets", 5).fit(cases)
    details = found.fit_report_.details
    assert details["chosen"] == "ets"
    assert "below that of ts (standard error" in details["why"]
    assert torch.equal(found.applied.weights, alone.weights)  # fitted again on all cases
    assert found.fit_report_.nll_after == pytest.approx(alone.fit_report_.nll_after, rel=1e-12)
    assert details["scores"]["ets"]["numbers"] == alone.learned == found.learned == 4


def scaled(count: int, temperature: Callable[[np.ndarray], np.ndarray]) -> list[Case]:
    """Calibrated scenes multiplied by a temperature that depends on the true logits."""
    found = []
    for scene in simulate(count, size=(32, 32), variation="global"):
        logits = np.asarray(scene.true_logits)
        found.append(replace(scene.case, logits=(logits * temperature(logits)).astype(np.float32)))
    return found


def of_class(logits: np.ndarray) -> np.ndarray:
    return np.array([0.6, 1.0, 1.6, 2.2, 3.0])[logits.argmax(axis=0)]


def near_borders(logits: np.ndarray) -> np.ndarray:
    """Higher the more pixels within 4 steps have another label to their right or below."""
    labels = logits.argmax(axis=0)
    border = np.zeros(labels.shape)
    border[:-1] += labels[:-1] != labels[1:]
    border[:, :-1] += labels[:, :-1] != labels[:, 1:]
    near = uniform_filter((border > 0).astype(float), 9)
    return np.asarray(np.exp(0.2 + 0.64 * (near - near.mean()) / near.std()))


SECONDS = ("ts", "ets", "classwise", "cts", "cts+classes")


@pytest.mark.parametrize(("temperature", "chosen"), [(of_class, "classwise"), (near_borders, "cts")])
def test_what_the_temperature_follows_is_found(
    temperature: Callable[[np.ndarray], np.ndarray], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_among_few(monkeypatch)
    found = auto(scaled(8, temperature), candidates=SECONDS)
    details = found.fit_report_.details
    assert details["chosen"] == chosen
    assert details["scores"][chosen]["difference"] < -5 * details["scores"][chosen]["difference_error"] < 0
    assert (details["chosen_details"]["features"] != []) == (chosen == "cts")
    assert any(details["chosen_details"]["class_offsets"]) == (chosen == "classwise")


def test_one_temperature_for_all_is_ts_among_all_that_take_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_among_few(monkeypatch)
    assert auto(scenes(8), candidates=SECONDS).fit_report_.details["chosen"] == "ts"


def nll_without(name: str, cases: list[Case], left: Case) -> float:
    fitted = create(name, 5).fit([case for case in cases if case is not left])
    return summed_nll(fitted, fitted.stream([left]))[0]


def test_scores_are_the_nll_of_what_was_left_out() -> None:
    """With as many folds as cases, leaving out by hand is one loop."""
    cases = heavy_tailed(5)
    scores = auto(cases).fit_report_.details["scores"]
    for name in QUICK:
        sums = np.array([nll_without(name, cases, left) for left in cases])
        assert scores[name]["nll"] == pytest.approx(sums.sum() / (5 * 1024), rel=1e-7)
        assert scores[name]["error"] == pytest.approx((sums / 1024).std(ddof=1) / np.sqrt(5), rel=1e-6)
    assert scores["ts"]["difference"] == scores["ts"]["difference_error"] == 0
    assert scores["ets"]["difference"] == pytest.approx(scores["ets"]["nll"] - scores["ts"]["nll"], rel=1e-6)


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        (heavy_tailed(1), "with one group of images none can be left out"),
        (grouped(heavy_tailed(8), 8), "with one group of images none can be left out"),
        (heavy_tailed(3), "3 images are too few .* give 4 or more"),
        (grouped(heavy_tailed(8), 4), "2 groups of images are too few .* give 4 or more"),
    ],
)
def test_too_few_groups_are_ts(cases: list[Case], why: str) -> None:
    details = auto(cases).fit_report_.details
    assert (details["chosen"], details["scores"]) == ("ts", {})
    assert re.search(why, details["why"])


def test_groups_are_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = grouped(heavy_tailed(12), 2)
    group_of, seen = [case.group for case in cases], list[tuple[str, set[str | None], set[str | None]]]()

    def sampled(own: Search, name: str, sample: ContextSample, fold: int) -> np.ndarray:
        case, within = sample.case, slice(*sample.data.edges[fold : fold + 2])
        rest = np.delete(case, within)
        assert sample.case_without(fold).logits.shape[1] == len(rest)
        seen.append((name, {group_of[k] for k in rest}, {group_of[k] for k in case[within]}))
        return kept["sampled"](own, name, sample, fold)

    def trained(own: Search, fold: int) -> np.ndarray:
        rest, left = own.scores.parts(fold)
        seen.append(("lts", {group_of[k] for k in rest}, {group_of[k] for k in left}))
        return kept["trained"](own, fold)

    kept = {"sampled": Search.sampled, "trained": Search.trained}
    monkeypatch.setattr(Search, "sampled", sampled)
    monkeypatch.setattr(Search, "trained", trained)
    ours = auto(cases, validation=cases, candidates=("ts", "lts"), epochs=1)
    assert ours.fit_report_.details["groups"] == 6
    for name in ("ts", "lts"):
        parts = [(fitted, left) for own, fitted, left in seen if own == name]
        assert set().union(*(left for _, left in parts)) == set(group_of)
        assert all(not fitted & left for fitted, left in parts)


def test_the_plan_is_announced_and_the_time_limit_leaves_out_what_is_expensive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="segcal"):
        found = AutomaticChoice(5, image_channels=1, candidates=("ts", "ets", "lts"), time_limit=1e-9)
        details = found.fit(scenes(5), epochs=500).fit_report_.details
    assert details["chosen"] == "ts"
    assert details["plan"]["left_out"] == ["lts"]
    assert details["plan"]["seconds"]["lts"] > 0
    assert "lts" not in details["scores"]
    assert details["why"].endswith("; lts was not tried because of the time limit of 0 s")
    (record,) = [record for record in caplog.records if record.name == "segcal"]
    assert record.getMessage().startswith(
        "auto compares ts, ets on a sample, in seconds; not tried because of the time limit of 0"
    )


def test_candidates_of_the_sample_are_compared_on_one_thread(
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Callable[[int], None],
) -> None:
    """Those that are trained use all threads, and all are there again afterwards."""
    set_threads(2)
    seen = dict[str, int]()

    def seeing(kind: str) -> Callable[..., Any]:
        own = getattr(Search, kind)

        def call(*given: Any) -> Any:
            seen[kind] = torch.get_num_threads()
            return own(*given)

        return call

    for kind in ("sampled", "trained"):
        monkeypatch.setattr(Search, kind, seeing(kind))
    auto(scenes(5), candidates=("ts", "lts"), epochs=1)
    assert seen == {"sampled": 1, "trained": 2}
    assert torch.get_num_threads() == 2


def test_stages_are_reported_to_the_bar() -> None:
    seen = list[tuple[str, int, int]]()
    with stages_shown(lambda *stage: seen.append(stage)):
        AutomaticChoice(5, candidates=("ts", "ets", "lts"), time_limit=1e-9).fit(scenes(5), epochs=1)
    assert seen == [
        ("reading the cases", 1, 1),
        ("estimating the time of lts", 1, 1),
        ("ts, candidate 1 of 2", 1, 2),
        ("ets, candidate 2 of 2", 2, 2),
    ]


@pytest.mark.parametrize(
    ("spent", "limit", "tried", "told"),
    [
        (0.0, None, ("ts", "lts"), ", and trains lts (about 15 min)"),
        (59.0, 960.0, ("ts", "lts"), ", and trains lts (about 15 min)"),
        (61.0, 960.0, ("ts",), "; not tried because of the time limit of 16 min: lts (about 15 min)"),
    ],
)
def test_training_that_takes_too_long_is_left_out(
    spent: float, limit: float | None, tried: tuple[str, ...], told: str
) -> None:
    plan = Plan(("ts",), 900.0, spent, limit)
    assert plan.tried == tried
    assert plan.announcement() == f"auto compares ts on a sample, in seconds{told}"


def test_time_is_extrapolated_from_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of n takes 2 + n / 100 s, and 50 s more the first time: 1,000 take 12 s, not 1,000 / 100 times 53."""
    clock, done = [0.0], list[int]()

    def work(n: int) -> None:
        clock[0] += 2 + n / 100 + (0 if done else 50)
        done.append(n)

    monkeypatch.setattr(search, "perf_counter", lambda: clock[0])
    assert search.extrapolated(work, (100, 200), 1000) == pytest.approx(12)
    assert search.extrapolated(work, (100, 200), 150) == pytest.approx(3.5)
    assert search.extrapolated(work, (100, 200), 50) == pytest.approx(2.5)
    assert max(done) == 200


def test_a_slow_moment_does_not_make_large_work_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of n takes n / 100 s, and 5 s more in the second call, which is the one that is timed first."""
    clock, calls = [0.0], [0]

    def work(n: int) -> None:
        calls[0] += 1
        clock[0] += n / 100 + 5 * (calls[0] == 2)

    monkeypatch.setattr(search, "perf_counter", lambda: clock[0])
    assert search.extrapolated(work, (100, 200), 1000) == pytest.approx(2 + 0.1 * 2 / 200 * 800)


def test_validation_cases_of_a_group_left_out_are_not_looked_at() -> None:
    cases = grouped(scenes(6), 2)
    stream = CaseStream(cases, 5)
    kept = cases_apart(stream, stream.part([2]))
    assert kept is not None
    assert [case.name for case in kept] == [case.name for case in cases if case.group != "video 1"]
    assert cases_apart(stream.part([0, 1]), stream.part([1, 2])) is None
    alone = CaseStream(scenes(3), 5)
    assert len(cases_apart(alone, alone) or ()) == 3  # without a group nothing says that they belong together


def assert_alike(found: Any, expected: Any) -> None:
    """Assert that two nested values are equal up to the rounding of their numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-4) if isinstance(expected, float) else expected)


def test_contextual_methods_share_one_path_of_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On scores of a few pixels per image too; what a method may use is a choice among the penalties."""
    choose_among_few(monkeypatch)
    path, name, calls = context_fit.ridge_path, "cts+classes", list[int]()
    monkeypatch.setattr(context_fit, "ridge_path", lambda *given, **named: calls.append(1) or path(*given, **named))
    cases = scaled(8, near_borders)
    details = auto(cases, candidates=SECONDS).fit_report_.details
    assert details["chosen"] == "cts"
    assert len(calls) == 1, "one for all candidates and the final fit, which is not free to use classes"
    again = auto(cases, candidates=("ts", name)).fit_report_.details
    assert again["chosen"] == name
    assert len(calls) == 2, "one for both"
    assert_alike(again["chosen_details"], create("cts", 5).fit(cases).fit_report_.details)
    scores = {name: row["nll"] for name, row in details["scores"].items()}
    assert scores["cts+classes"] <= scores["cts"] + 1e-3 < scores["ts"]
    by_hand = [nll_without("cts", cases, left) for left in cases]
    assert scores["cts"] == pytest.approx(np.sum(by_hand) / (8 * 1024), rel=0.01)


def test_trained_methods_are_scored_at_the_pixels_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.calibrators.shared.context_sample._SAMPLE", 512)
    monkeypatch.setattr(stream_module, "SLAB", 5 * 8 * 32)
    cases = scenes(4, "local")
    stream = CaseStream(cases, 5)
    sample = draw_sample(stream, spatial_dims=2, features=False)
    for number, case in enumerate(cases):
        own = sample.case == number
        at = sample.position[own]
        assert np.array_equal(sample.data.labels[own], np.asarray(case.labels).reshape(-1)[at])
        assert np.array_equal(sample.data.logits[:, own], np.asarray(case.logits).reshape(5, -1)[:, at])
    ts = create("ts", 5).fit(cases)
    found = sum(losses_at(sample, ts, case, number).sum() for number, case in enumerate(stream))
    alpha = float(ts.inverse_temperature)
    assert found == pytest.approx(likelihood(sample.data.logits, sample.data.labels, alpha).nll, rel=1e-6)


def test_pixels_of_no_group_and_ignored_cases() -> None:
    """A case without a labelled pixel neither counts as a group nor disturbs the choice."""
    cases = heavy_tailed(5)
    empty = replace(cases[0], name="empty", labels=np.full((32, 32), 9))
    one = AutomaticChoice(5, candidates=QUICK, ignore_index=9).fit([empty, *cases])
    other = AutomaticChoice(5, candidates=QUICK, ignore_index=9).fit(cases)
    assert timeless(one) == timeless(other)
    assert one.fit_report_.cases == 6


def timeless(calibrator: Calibrator) -> dict[str, Any]:
    details = {name: value for name, value in calibrator.fit_report_.details.items() if name != "plan"}
    scores = {name: {**score, "seconds": None} for name, score in details["scores"].items()}
    return {**details, "scores": scores}


# --------------------------------------------------------------------------------------------------------------------
# the race, and what goes wrong


def test_what_is_hopeless_is_given_up_after_the_first_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    # by default LTS falls back to TS and is never hopeless
    hopeless = module._CANDIDATES["lts"]._replace(settings={"preset": "paper"})
    monkeypatch.setitem(module._CANDIDATES, "lts", hopeless)
    found = auto(scenes(5), candidates=("ts", "lts"), epochs=1, learning_rate=0.3)
    score = found.fit_report_.details["scores"]["lts"]
    assert score["note"].startswith("given up after the first of 5 folds: NLL ")
    assert score["nll"] is None
    assert score["numbers"] > 1000
    assert found.fit_report_.details["chosen"] == "ts"


def test_a_candidate_that_cannot_be_fitted_is_told_of() -> None:
    cases = [replace(case, image=None) for case in scenes(5)]
    found = auto(cases, candidates=("ts", "lts"), epochs=1)
    assert found.fit_report_.details["chosen"] == "ts"
    assert any("lts could not be fitted: images need 1 channels" in text for text in found.fit_report_.warnings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": ("ts", "magic")}, "candidates must be among ts, .*, got 'magic'"),
        ({"candidates": ("ets",)}, "candidates must include 'ts'"),
        ({"time_limit": 0.0}, "time_limit must be a positive number of seconds"),
        ({"bounds": (2.0, 1.0)}, "bounds must be positive"),
        ({"bounds": (1.0, 2.0, 3.0)}, "bounds must be two numbers"),
        ({"spatial_dims": 4}, "spatial_dims must be "),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AutomaticChoice(5, **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs and batch_size must be at least 1"),
        ({"batch_size": 0}, "epochs and batch_size must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate positive"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"crop": 0}, "crop must be at least 1"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
    ],
)
def test_wrong_options_are_no_failure_of_a_candidate(options: dict[str, Any], message: str) -> None:
    for method, settings in (("auto", {"candidates": ("ts", "lts"), "time_limit": None}), ("lts", {})):
        calibrator = create(method, 5, spatial_dims=2, image_channels=1, **settings)
        with pytest.raises(InputError, match=message):
            calibrator.fit(scenes(5), **options)
        assert not calibrator.fitted


def scores_of(**sums: list[float]) -> CrossValidation:
    cases = np.arange(4)
    return CrossValidation(cases, cases, np.full(4, 10.0), {name: Score(np.array(row)) for name, row in sums.items()})


@pytest.mark.parametrize(
    ("sums", "chosen", "why"),
    [
        ({"ts": [5.0] * 4, "ets": [5.1] * 4}, "ts", "no other method has a lower NLL"),
        ({"ts": [5.0] * 4, "ets": [4.996] * 4}, "ts", "0.5000, within a thousandth of the best, ets, which lowers"),
        ({"ts": [5.0] * 4, "ets": [4.7, 5.2, 4.7, 5.2]}, "ts", "within one standard error of the best, ets"),
        (
            {"ts": [5.0] * 4, "ets": [4.5] * 4},
            "ets",
            "10.0 % below that of ts .*; every simpler one is worse by more than one standard error, or worse than ts",
        ),
        ({"ts": [5.0] * 4, "ets": [4.5] * 4, "cts": [4.499] * 4}, "ets", "within a thousandth of the best, cts"),
        (
            {"ts": [5.0] * 4, "ets": [4.5] * 4, "cts": [4.2, 4.7, 4.2, 4.7]},
            "ets",
            r"within one standard error of the best, cts \(0.4450\)",
        ),
        ({"ts": [5.0] * 4, "ets": [5.8, 4.4, 5.8, 4.4], "cts": [4.9] * 4}, "cts", "2.0 % below that of ts"),
    ],
)
def test_why_says_what_decided(sums: dict[str, list[float]], chosen: str, why: str) -> None:
    name, told = scores_of(**sums).choose()
    assert name == chosen
    assert re.search(why, told), told


def test_a_candidate_of_no_finite_score_is_given_up_or_out() -> None:
    scores = scores_of(ts=[5.0] * 4, lts=[float("inf")] * 4)
    assert scores.is_far_behind("lts")
    assert scores.choose()[0] == "ts"


# --------------------------------------------------------------------------------------------------------------------
# whatever it takes, it keeps the contract


def taking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial end with this candidate, untried."""
    monkeypatch.setattr(module, "_FEWEST_GROUPS", 1)
    monkeypatch.setattr(Search, "plan", lambda *_: Plan(()))
    monkeypatch.setattr(module.CrossValidation, "choose", lambda _: (name, "told so"))
    choose_among_few(monkeypatch)


@cache
def subject(name: str) -> Subject:
    """What is fitted on the cases is shared by all tests of a candidate, each of which calls `taking` first."""

    def make(**settings: Any) -> Calibrator:
        return create("auto", 3, spatial_dims=2, image_channels=1, candidates=("ts", name), **settings)

    cases = simulated(3, num_classes=3, size=(20, 14), contrast=2.0, seed=3)
    return Subject(make, cases, {"epochs": 2})


@pytest.mark.parametrize("name", ["ets", "cts+pairs", "lts"])  # one of each kind
@pytest.mark.parametrize(
    "check",
    [
        "shape_and_dtype_are_kept",
        "labels_are_kept",
        "probabilities_are_the_softmax_of_the_logits",
        "slabs_give_what_the_whole_gives",
        "calibrating_a_case_leaves_the_mode_of_gradients_alone",
        "fit_returns_the_calibrator_and_a_report_that_is_true",
        "a_second_fit_forgets_the_first",
        "training_is_never_worse_than_temperature_scaling",
        "scores_that_are_not_finite_are_refused_with_their_place",
        "a_cast_of_the_model_leaves_what_was_learned",
        "saved_is_what_is_loaded",
        "state_dict_is_all_that_is_learned",
        "building_and_loading_draw_no_random_numbers",
    ],
)
def test_contract_of_every_choice(name: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of what passes through `auto` to what it has chosen; all of them run over `auto` itself."""
    taking(name, monkeypatch)
    CHECKS[check](subject(name), tmp_path)


@pytest.mark.parametrize("name", module.CANDIDATES)
def test_temperatures_and_reach_are_those_of_the_chosen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(name, monkeypatch)
    ours = subject(name)
    ours.fitted.save(tmp_path / "saved")
    loaded = segcal.load(tmp_path / "saved")
    assert isinstance(loaded, AutomaticChoice)
    logits, image = ours.batch()
    for calibrator in (ours.fitted, loaded):
        assert isinstance(calibrator, AutomaticChoice)
        assert calibrator.context == calibrator.applied.context
        if name in ("ets", "cmsap", "cmsop", "pool"):
            with pytest.raises(InputError, match=f"'{name}' was chosen, which has no temperature"):
                calibrator.temperature(logits, image)
        else:
            assert torch.equal(calibrator.temperature(logits, image), calibrator.applied.temperature(logits, image))


@pytest.mark.parametrize("name", ["ets", "lts"])  # without and with the image
def test_what_is_exported_is_the_chosen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    taking(name, monkeypatch)
    assert export_onnx(subject(name).fitted, tmp_path / "file.onnx", size=(16, 16)) < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"), providers=["CPUExecutionProvider"])
    needed = ["logits", "image"] if name == "lts" else ["logits"]
    assert [entry.name for entry in session.get_inputs()] == needed  # no image where none is looked at
