"""The training loop: right on a problem with a known answer, and the same however it is interrupted or spread."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from segcal import InputError
from segcal.training.batches import as_source
from segcal.training.loop import _TrainingRun, hash_seed, train
from segcal.training.settings import Epoch, Training
from support import fit_in_process
from support.program import TORCHRUN, python


class Line(nn.Module):
    """Squared error of a straight line: the answer is known."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (y - self.slope * x).square().sum(), torch.tensor(y.numel())


def line_data(sizes: list[int], slope: float = 2.0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    xs = [random.normal(size=(1, n)).astype(np.float32) for n in sizes]
    return [(x, slope * x) for x in xs]


@pytest.mark.parametrize("sizes", [[8] * 6, [3, 9, 9, 4, 30]])
def test_a_known_answer_is_found(sizes: list[int]) -> None:
    objective = Line()
    history = train(objective, line_data(sizes), Training(epochs=80, learning_rate=0.1, batch_size=4, spatial_dims=1))
    assert objective.slope.item() == pytest.approx(2.0, abs=1e-3)
    assert [epoch.number for epoch in history.epochs] == list(range(1, 81))


def test_training_in_a_block_without_gradients() -> None:
    """Callers that predict and fit in one `no_grad` block get the same weights; inference mode is refused."""
    settings, found = Training(epochs=3, learning_rate=0.1, spatial_dims=1), [Line(), Line()]
    train(found[0], line_data([8] * 2), settings)
    with torch.no_grad():
        train(found[1], line_data([8] * 2), settings)
        assert not torch.is_grad_enabled()
    assert torch.equal(found[0].slope, found[1].slope)
    with torch.inference_mode(), pytest.raises(InputError, match=r"training needs gradients, .* fit outside of it"):
        train(Line(), line_data([8] * 2), settings)


def test_a_step_is_on_the_mean_over_the_batch_however_it_is_shaped() -> None:
    """Adam's first step hides the size of the gradient, so look at the loss that is reported, and at two steps."""
    ragged, flat = (
        line_data([3, 9, 5]),
        [tuple(np.concatenate(p, axis=1) for p in zip(*line_data([3, 9, 5]), strict=True))],
    )
    results = []
    for data in (ragged, flat):
        objective = Line()
        train(objective, data, Training(epochs=5, learning_rate=0.1, batch_size=3, spatial_dims=1))
        results.append(objective.slope.item())
    assert results[0] == pytest.approx(results[1], abs=1e-6)


def test_the_weights_of_least_validation_loss_are_kept() -> None:
    objective = Line()
    settings = Training(epochs=40, learning_rate=0.2, batch_size=8, spatial_dims=1)
    history = train(objective, line_data([8] * 4, 3.0), settings, validation=line_data([8] * 4, 1.0))
    losses = [epoch.validation for epoch in history.epochs]
    assert history.best_epoch == 1 + int(np.argmin(losses)) < 40
    assert objective.slope.item() == pytest.approx(1.0, abs=0.2)


def test_early_stopping_waits_for_its_patience() -> None:
    settings = Training(epochs=40, learning_rate=0.2, batch_size=8, spatial_dims=1, patience=3)
    history = train(Line(), line_data([8] * 4, 3.0), settings, validation=line_data([8] * 4, 1.0))
    assert len(history.epochs) == history.best_epoch + 3


def test_early_stopping_waits_for_as_many_steps_as_few_epochs_would_not_have() -> None:
    settings = Training(epochs=40, learning_rate=0.2, batch_size=2, spatial_dims=1, patience=3, patience_steps=14)
    history = train(Line(), line_data([8] * 4, 3.0), settings, validation=line_data([8] * 4, 1.0))
    assert len(history.epochs) == history.best_epoch + 7, "two steps an epoch"


def test_schedules() -> None:
    assert [Training(milestones=(2, 4), gamma=0.1).rate(e) for e in (0, 2, 4)] == pytest.approx([1e-4, 1e-5, 1e-6])
    assert Training(cosine=True, epochs=10).rate(5) == pytest.approx(0.5e-4)


def test_crops_and_flips_stay_together() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    class Spy(Line):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            seen.append((x.clone(), y.clone()))
            return super().forward(x.float(), y.float())

    image = np.arange(12 * 10).reshape(1, 12, 10)
    train(Spy(), [(image, image[0])], Training(epochs=20, crop=5, flips=True))
    assert all(torch.equal(x[:, 0], y) and x.shape == (1, 1, 5, 5) for x, y in seen)
    assert len({tuple(x.flatten().tolist()) for x, _ in seen}) > 10
    steps = {(int(x[0, 0, 0, 1] - x[0, 0, 0, 0]), int(x[0, 0, 1, 0] - x[0, 0, 0, 0])) for x, _ in seen}
    assert steps == {(1, 10), (-1, 10), (1, -10), (-1, -10)}, "every combination of flips occurs"


def test_seeds_are_the_same_in_every_version() -> None:
    """Half of what NumPy's SeedSequence gives, since PyTorch's seeds have 63 bits; others would train other weights."""
    assert (hash_seed(0, 1), hash_seed(3, 7, 2)) == (2918264622725855778, 1016266665476324714)


def test_mixed_precision_learns_too() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            out = self.layer(x.flatten()[:, None])
            assert out.dtype == torch.bfloat16
            return (out.float()[:, 0] - y.flatten()).square().sum(), torch.tensor(y.numel())

    objective = Layer()
    settings = Training(epochs=80, learning_rate=0.1, spatial_dims=1, precision="bfloat16")
    train(objective, line_data([16] * 4), settings)
    assert objective.layer.weight.item() == pytest.approx(2.0, abs=0.05)


def run(
    out: Path, checkpoint: Path | str = "", kill_after: int = 0, launcher: Sequence[str] = ()
) -> CompletedProcess[str]:
    return python(*launcher, fit_in_process.__file__, out, checkpoint, kill_after)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    out = tmp_path_factory.mktemp("whole") / "weights.safetensors"
    done = run(out)
    assert done.returncode == 0, done.stderr
    return load_file(out)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a fit that was killed after four epochs of six."""
    folder = tmp_path_factory.mktemp("killed")
    assert run(folder / "w", folder / "run", kill_after=4).returncode == -signal.SIGKILL
    assert not (folder / "w").exists()
    return folder / "run"


def test_a_killed_fit_resumes_to_the_same_weights(
    uninterrupted: dict[str, Tensor], killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path / "run")
    resumed = run(tmp_path / "w", tmp_path / "run")
    assert resumed.returncode == 0, resumed.stderr
    found = load_file(tmp_path / "w")
    assert all(torch.equal(found[name], value) for name, value in uninterrupted.items())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damage_is_reported_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    settings = Training(epochs=3, learning_rate=0.1, spatial_dims=1, checkpoint=tmp_path / "run")
    train(Line(), line_data([8] * 4), settings)
    newest = max((tmp_path / "run").glob("epoch-*.safetensors"))
    content = newest.read_bytes()
    broken = {
        "truncated": content[:-3],
        "flipped": content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
        "empty": b"",
    }
    newest.write_bytes(broken[damage])
    epochs: list[Epoch] = []
    history = train(Line(), line_data([8] * 4), replace(settings, watch=epochs.append))
    assert len(history.warnings) == 1
    assert "is damaged" in history.warnings[0]
    assert [epoch.number for epoch in epochs] == [3], "epoch 3 was done again, from the checkpoint of epoch 2"


def test_checkpoints_of_another_run_are_refused(tmp_path: Path) -> None:
    data, place = line_data([8] * 4), {"spatial_dims": 1, "checkpoint": tmp_path / "run"}
    train(Line(), data, Training(epochs=2, **place))
    with pytest.raises(InputError, match=r"of a run with learning_rate=0\.0001, and this one has 0\.1"):
        train(Line(), data, Training(epochs=2, learning_rate=0.1, **place))


def test_a_run_that_diverges_is_resumed(tmp_path: Path) -> None:
    """Its losses are infinite, then NaN."""
    data, losses = line_data([8] * 4), list[float]()
    settings = Training(
        epochs=4, learning_rate=1e30, spatial_dims=1, checkpoint=tmp_path, watch=lambda epoch: losses.append(epoch.loss)
    )
    for _ in range(2):
        train(Line(), data, settings)
        max(tmp_path.glob("epoch-*")).unlink()
    assert len(losses) == 5, "four epochs, and the last one again"
    assert not np.isfinite(losses[1:]).any()


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="did not write"):
        train(Line(), line_data([8]), Training(epochs=1, spatial_dims=1, checkpoint=tmp_path))


def test_two_processes_learn_what_one_does(uninterrupted: dict[str, Tensor], tmp_path: Path) -> None:
    done = run(tmp_path / "w", launcher=TORCHRUN)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "w")
    for name, value in uninterrupted.items():
        assert torch.allclose(found[name].double(), value.double(), atol=1e-5), name


class Norm(nn.Module):
    """A line behind batch normalisation, so that there are statistics to average as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.slope = nn.BatchNorm1d(1), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (y - self.slope * self.norm(x)).square().sum(), torch.tensor(y.numel())


def test_averaged_weights_are_those_of_the_recursion() -> None:
    """Weights and statistics of each step, seen through a spy, averaged by hand."""
    seen: list[dict[str, Tensor]] = []

    class Spy(Norm):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            seen.append({name: value.detach().clone() for name, value in self.state_dict().items()})
            return super().forward(x, y)

    data = line_data([8] * 6)
    settings = Training(epochs=3, learning_rate=0.1, batch_size=2, spatial_dims=1)
    train(last := Spy(), data, settings)
    steps = [*seen[1:], last.state_dict()]
    assert len(steps) == 9
    average = {name: value.double() for name, value in steps[0].items()}
    for state in steps[1:]:
        average = {name: 0.7 * value + 0.3 * state[name].double() for name, value in average.items()}
    train(found := Norm(), data, Training(epochs=3, learning_rate=0.1, batch_size=2, spatial_dims=1, average=0.7))
    for name in ("slope", "norm.weight", "norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(found.state_dict()[name].double(), average[name], rtol=1e-5, atol=1e-6)


class StopError(Exception):
    """Ends a training as Ctrl-C would."""


def stop(epoch: Epoch) -> None:
    if epoch.number == 2:
        raise StopError


def test_averages_survive_an_interruption(tmp_path: Path) -> None:
    data, plain = line_data([8] * 6), Training(epochs=4, learning_rate=0.1, batch_size=2, spatial_dims=1, average=0.9)
    resumable = replace(plain, checkpoint=tmp_path / "c")
    validation = line_data([8] * 2, 1.0)
    train(straight := Norm(), data, plain, validation=validation)
    with pytest.raises(StopError):
        train(Norm(), data, replace(resumable, watch=stop), validation=validation)
    train(resumed := Norm(), data, resumable, validation=validation)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_the_best_loss_survives_an_interruption(tmp_path: Path) -> None:
    """Every epoch moves away from the validation data, so the first is the best, also for a run that goes on."""
    data, validation = line_data([8] * 4), line_data([8] * 2, 0.0)
    settings = Training(epochs=4, learning_rate=0.1, batch_size=4, spatial_dims=1, checkpoint=tmp_path / "c")
    with pytest.raises(StopError):
        train(Line(), data, replace(settings, watch=stop), validation=validation)
    history = train(Line(), data, settings, validation=validation)
    assert [epoch.number for epoch in history.epochs] == [1, 2, 3, 4]
    assert (history.best_epoch, history.best_loss) == (1, history.epochs[0].validation)


def test_augmentation_is_told_sample_and_epoch_and_leaves_validation_alone() -> None:
    told: list[tuple[int, float]] = []

    def augment(batch: tuple[Tensor, ...], randoms: Sequence[np.random.Generator], epoch: int) -> tuple[Tensor, ...]:
        told.extend((epoch, random.random()) for random in randoms)
        assert len(randoms) == len(batch[0])
        return batch[0], batch[1] * 0 + 5 * batch[0]

    data, settings = line_data([8, 8, 4, 8]), Training(epochs=60, learning_rate=0.2, batch_size=3, spatial_dims=1)
    history = train(line := Line(), data, settings, augment=augment, validation=line_data([8], 5.0))
    assert line.slope.item() == pytest.approx(5.0, abs=0.05)
    assert history.best_loss < 0.01
    assert len(told) == len(set(told)) == 4 * 60
    expected = {np.random.default_rng([0, 1, index]).random() for index in range(4)}
    assert {value for epoch, value in told if epoch == 1} == expected


def test_whole_batches_leave_others_out_each_time() -> None:
    seen: list[list[float]] = []

    class Spy(Line):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            seen.append([float(value) for value in x[:, 0].flatten()])
            return super().forward(x, y)

    samples = [(np.full(3, float(k), np.float32), np.zeros(3, np.float32)) for k in range(7)]
    settings = Training(epochs=12, batch_size=3, whole_batches=True, spatial_dims=1)
    train(Spy(), samples, settings)
    assert [len(batch) for batch in seen] == [3] * 24
    assert {value for batch in seen for value in batch} == set(range(7))
    left_out = [set(range(7)) - {*seen[k], *seen[k + 1]} for k in range(0, 24, 2)]
    assert len(set(map(frozenset, left_out))) > 1
    seen.clear()
    train(Spy(), samples[:2], settings)
    assert [len(batch) for batch in seen] == [2] * 12, "too few for one batch are one all the same"


def test_the_outcome_is_shown_after_each_epoch() -> None:
    shown: list[tuple[int, Tensor]] = []

    def inspect(number: int, objective: nn.Module) -> None:
        shown.append((number, objective.get_parameter("slope").detach().clone()))

    data, settings = line_data([8] * 6), Training(epochs=3, learning_rate=0.1, spatial_dims=1, average=0.9)
    train(line := Line(), data, settings, inspect=inspect)
    assert [number for number, _ in shown] == [1, 2, 3]
    assert torch.equal(shown[-1][1], line.slope), "the averaged one, as the end gives it"
    train(short := Line(), data, replace(settings, epochs=1), inspect=None)
    assert torch.equal(shown[0][1], short.slope)


@pytest.mark.parametrize(("world", "pixels"), [(1, 5), (2, 5), (3, 5), (1, 1)])
def test_the_gradient_of_a_step_is_that_of_the_mean_loss_over_all_processes(
    world: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam hides the size of the gradient, so look at the gradient. Here all processes have the same batch, of whose
    gradients DistributedDataParallel leaves the mean, while losses and weights are summed."""
    monkeypatch.setattr("segcal.training.loop.sum_over_processes", lambda sums: world * sums)
    settings = Training(epochs=1, learning_rate=0.1, spatial_dims=1)
    data = line_data([pixels])
    run = _TrainingRun(Line(), as_source(data), settings, torch.device("cpu"))
    run.world = world
    x, y = (torch.from_numpy(part)[None] for part in data[0])
    run._step([(x, y)], share=1.0)
    assert run.objective.slope.grad.item() == pytest.approx(-2 * (x * y).mean().item(), rel=1e-5)


def test_a_batch_without_weight_has_no_gradient() -> None:
    class Empty(Line):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            loss, weight = super().forward(x, y)
            return 0.0 * loss, 0 * weight

    train(line := Empty(), line_data([8] * 2), Training(epochs=2, spatial_dims=1))
    assert line.slope.item() == 0.0


def test_adamw_warmup_and_bad_settings() -> None:
    assert [Training(warmup=3).rate(k) for k in (0, 1, 3, 9)] == pytest.approx([0.25e-4, 0.5e-4, 1e-4, 1e-4])
    objective = Line()
    with torch.no_grad():
        objective.slope.fill_(1.0)
    settings = Training(epochs=1, learning_rate=0.1, weight_decay=0.5, optimiser="adamw", spatial_dims=1)
    train(objective, line_data([8], 1.0), settings)  # no gradient, so that only the decay is left
    assert objective.slope.item() == pytest.approx(0.95)
    with pytest.raises(InputError, match="adam, adamw, got 'sgd'"):
        Training(optimiser="sgd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="average must be between 0 and 1"):
        Training(average=1.0)


def test_of_equal_validation_losses_the_first_is_kept() -> None:
    """Without a learning rate to speak of nothing changes, and every epoch has the same loss."""
    settings = Training(epochs=3, learning_rate=1e-30, batch_size=2, spatial_dims=1)
    history = train(Line(), line_data([8] * 2), settings, validation=line_data([8] * 2))
    assert len({epoch.validation for epoch in history.epochs}) == 1
    assert history.best_epoch == 1


def test_processes_exchange_gradients_with_the_last_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over samples of three shapes has three parts; the gradients are exchanged once, when all are summed."""
    waiting, seen = [False], list[bool]()

    class Spy(Line):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(waiting[0])
            return super().forward(x, y)

    @contextmanager
    def without_sync() -> Iterator[None]:
        waiting[0] = True
        yield
        waiting[0] = False

    settings = Training(epochs=1, spatial_dims=1)
    run = _TrainingRun(Spy(), as_source(line_data([5])), settings, torch.device("cpu"))
    monkeypatch.setattr(run, "_without_sync", without_sync)
    run._step([tuple(torch.from_numpy(part) for part in sample) for sample in line_data([3, 5, 4])], share=1.0)
    assert seen == [True, True, False]


def test_steps_are_recorded_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Module] = []

    def recorder(module: nn.Module) -> nn.Module:
        made.append(module)
        return module

    monkeypatch.setattr("segcal.training.loop.Recorder", recorder)
    data, settings = line_data([8] * 2), Training(epochs=1, spatial_dims=1)
    train(plain := Line(), data, settings)
    assert not made
    train(recorded := Line(), data, settings, record=True)
    assert len(made) == 1
    assert torch.equal(plain.slope, recorded.slope)


def test_nothing_is_prepared_ahead_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.training.loop.prefetch", None)  # not called
    train(Line(), line_data([8] * 2), Training(epochs=2, spatial_dims=1, device="cpu"))
