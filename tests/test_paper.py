"""Every item of the paper: the function that computes it, and the test that checks it against the paper's own words.

A row fails if its function or its test does not exist, or if the module of the test does not use the function. The
tests themselves run in their own modules.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

TESTS = Path(__file__).parent

ITEMS = """
Eq. 3.1: confidence and prediction | segcal.evidence.describe
    evidence/test_statistic.py::test_a_pixel_is_described_as_in_the_paper
Sec. 3.1: perfect calibration | segcal.evaluation.run.evaluate
    evaluation/test_floor.py::test_a_calibrated_network_stands_on_its_floor
Sec. 3: labels do not change | segcal.calibrators.temperature.TemperatureCalibrator
    support/contracts.py::labels_are_kept
Sec. 3.2: disjoint sets | experiments.datasets.splits.nested_cross_validation
    experiments/test_splits.py::test_folds_test_every_name_once
Sec. 3.2: disjoint frames | experiments.datasets.camvid.open_camvid
    experiments/test_camvid.py::test_a_frame_in_two_splits_is_refused
Sec. 3.2: images that were fitted on are reported | segcal.evaluation.run.evaluate
    evaluation/test_run.py::test_measuring_on_fitted_cases_is_warned_of
Sec. 3.3: TS | segcal.calibrators.temperature.TemperatureScaling
    calibrators/test_temperature.py::test_agrees_with_scipy
Sec. 3.3: IBTS | segcal.calibrators.local.ImageTemperatureScaling
    calibrators/test_local.py::test_ibts_finds_one_temperature_per_image_and_ts_cannot
Sec. 3.4: LTS | segcal.calibrators.local.LocalTemperatureScaling
    calibrators/test_local.py::test_lts_finds_a_smooth_field_and_corrects_the_worst_patch
Sec. 3.4: T at 0, below 1, at 1, above it and at infinity | segcal.calibrators.temperature.TemperatureScaling
    calibrators/test_temperature.py::test_limits_of_the_temperature
Sec. 3.4: LTS keeps the order of the classes | segcal.calibrators.local.LocalTemperatureScaling
    calibrators/test_local.py::test_the_order_of_the_classes_is_kept
App. B: the tree | segcal.calibrators.shared.tree.TemperatureTree
    calibrators/test_local.py::test_the_fused_tree_is_the_papers
App. B: IBTS is the mean of the tree | segcal.calibrators.local.ImageTemperatureScaling
    calibrators/test_local.py::test_ibts_is_the_mean_of_the_tree
App. C: schedule | segcal.calibrators.local.LocalTemperatureScaling
    calibrators/test_local.py::test_the_preset_of_the_paper_is_what_the_paper_does
Lemma 1 | segcal.functional.temperature.likelihood
    functional/test_theorems.py::test_lemma_1_weighted_logits_are_monotone_and_bounded
Lemma 2 | segcal.functional.temperature.likelihood
    functional/test_theorems.py::test_lemma_2_equal_probabilities_have_the_largest_entropy
Theorem 1 | segcal.functional.temperature.optimal_inverse_temperature
    functional/test_theorems.py::test_theorem_1_the_optimum_of_nll
Theorem 2 | segcal.functional.temperature.optimal_inverse_temperature
    functional/test_theorems.py::test_theorem_2_temperature_scaling_has_the_largest_entropy
Theorem 2-b | segcal.functional.temperature.optimal_inverse_temperature
    functional/test_theorems.py::test_theorem_2_b_largest_entropy_among_temperatures
Theorem 3 | segcal.functional.temperature.optimal_inverse_temperature
    functional/test_theorems.py::test_theorem_3_least_entropy_among_temperatures
Theorem 4 | segcal.functional.temperature.optimal_inverse_temperature
    functional/test_theorems.py::test_theorem_4_nll_and_entropy_meet
App. E: over-, underconfidence and balance | segcal.evaluation.diagnosis.diagnose
    evaluation/test_diagnosis.py::test_worked_by_hand
Sec. 3.5: NLL and entropy meet at the best temperature | segcal.evaluation.diagnosis.diagnose
    evaluation/test_diagnosis.py::test_scores_at_their_best_temperature_are_balanced
Figs. 1 and 2, App. D, G and I: figures | segcal.report.figures.write_figure
    report/test_figures.py::test_every_kind
Fig. 1: best temperatures | segcal.oracle.oracle_temperature
    test_oracle.py::test_pixels_agree_with_golden_sections
Sec. 3.5: best temperatures of images and data sets | segcal.oracle.oracle_temperature
    test_oracle.py::test_images_and_data_set_agree_with_golden_sections
Sec. 4: ECE, MCE, SCE, ACE | segcal.evidence.statistic.Evidence
    evidence/test_statistic.py::test_readings_agree_with_loops
Sec. 4: the same by hand | segcal.evidence.statistic.Evidence
    evidence/test_statistic.py::test_every_reading_by_hand
Sec. 4: equal-mass bins | segcal.evidence.statistic.Evidence
    evidence/test_statistic.py::test_equal_mass_bins_by_hand
Sec. 4: All | segcal.functional.geometry.foreground
    test_regions.py::test_all_by_hand
Sec. 4: Boundary | segcal.functional.geometry.boundary
    test_regions.py::test_regions_agree_with_loops
Sec. 4: Local | segcal.regions.local_patches
    test_regions.py::test_patches_lie_inside
Sec. 4: Local-Avg, Local-Max | segcal.evaluation.run.evaluate
    evaluation/test_run.py::test_local_is_the_mean_and_the_worst_of_the_patches
Fig. 2: reliability diagrams | segcal.evidence.statistic.Evidence
    evidence/test_statistic.py::test_the_curve_agrees_with_loops
Fig. 2: local reliability diagrams | segcal.evaluation.portraits
    evaluation/test_portraits.py::test_the_curves_agree_with_the_results
App. H: patch sizes | segcal.evaluation.results.Results
    evaluation/test_run.py::test_further_sizes_of_patches_are_as_if_measured_alone
Sec. 4: Mann-Whitney U | segcal.statistics.significance
    statistics/test_significance.py::test_mann_whitney_by_hand
Sec. 4: Benjamini-Hochberg | segcal.statistics.significance
    statistics/test_significance.py::test_benjamini_hochberg_by_hand
Sec. 4.1: IsoReg | segcal.calibrators.scores.IsotonicRegression
    calibrators/test_scores.py::test_one_score_to_a_cell_is_scikit_learns_fit
Sec. 4.1: VS | segcal.calibrators.affine.VectorScaling
    calibrators/test_affine.py::test_the_optimum_is_found
Sec. 4.1: ETS | segcal.calibrators.ensemble.EnsembleTemperatureScaling
    calibrators/test_ets.py::test_agrees_with_slsqp
Sec. 4.1: DirODIR | segcal.calibrators.affine.DirichletCalibration
    calibrators/test_affine.py::test_penalties_are_plain_sums
App. C: penalties of DirODIR | segcal.calibrators.affine.DirichletCalibration
    calibrators/test_affine.py::test_the_penalties_of_the_paper_are_the_default
Sec. 4.1: grid search | segcal.calibrators.affine.search_dirichlet
    calibrators/test_affine.py::test_search_takes_the_penalties_of_least_validation_nll
Sec. 4.1: FCN on COCO | experiments.coco.__main__.main
    experiments/test_coco.py::test_from_coco_to_the_table
App. C: 3500, 500 and 1000 images of COCO | experiments.datasets.coco.SIZES
    experiments/test_splits.py::test_parts_are_disjoint_and_do_not_depend_on_order
App. C: the 20 classes of VOC, and background | experiments.datasets.coco.open_coco
    experiments/test_coco.py::test_coco_becomes_voc_labels
Sec. 4.2: FC-DenseNet | experiments.camvid.fc_densenet.fc_densenet
    experiments/test_fc_densenet.py::test_103_has_the_maps_of_the_published_table
Sec. 4.2: focal loss | segcal.losses.FocalLoss
    test_losses.py::test_focal_is_what_the_loop_gives
Sec. 4.2: MMCE | segcal.losses.MMCELoss
    test_losses.py::test_mmce_is_what_the_loop_gives
Sec. 4.2: focal loss and MMCE of the cited code | experiments.camvid.jobs.Job
    experiments/test_camvid.py::test_losses_of_the_cited_code
Sec. 4.2: 367, 101 and 233 frames; 90 and 11 to calibrate | experiments.datasets.camvid.calibration_split
    experiments/test_camvid.py::test_the_splits_are_disjoint_and_whole
Tab. 3: every method on CamVid | experiments.camvid.__main__.main
    experiments/test_camvid.py::test_tables_are_made_of_what_is_there
Tab. 1, 3: printed numbers | experiments.beside_paper.paper_numbers
    experiments/test_beside_paper.py::test_the_paper_is_transcribed_whole
Tab. 1, 3: printed numbers in their places | experiments.beside_paper.paper_numbers
    experiments/test_beside_paper.py::test_cells_of_the_paper_are_in_their_places
Tab. 1, 3: mean(std), bold, marks, and the reference FL+LTS | experiments.beside_paper.markdown
    experiments/test_beside_paper.py::test_a_table_is_presented_as_the_papers
Tab. 1, 3: marks of LTS and of FL+LTS | experiments.camvid.table.tables
    experiments/test_camvid.py::test_tables_are_made_of_what_is_there
Tab. 1, 3: rows FL+LTS and MMCE+LTS | experiments.camvid.jobs.Job
    experiments/test_camvid.py::test_rows_of_joint_training_are_named_as_in_the_paper
App. C: the loss of LTS and IBTS is over All | segcal.calibrators.local.LocalTemperatureScaling
    calibrators/test_local.py::test_the_loss_is_over_all
App. C: the loss of TS is over All | segcal.calibrators.temperature.TemperatureScaling
    calibrators/test_temperature.py::test_the_loss_is_over_all
App. C: affine alignment | experiments.lpba40.preprocessing.affine_between
    experiments/test_preprocessing.py::test_alignment_recovers_a_known_transform
App. C: histogram equalisation | experiments.lpba40.preprocessing.equalised
    experiments/test_preprocessing.py::test_equalisation_worked_by_hand
App. C: 3D U-Net | segcal.networks.unet3d.UNet3D
    networks/test_unet3d.py::test_the_paper_s_network_has_the_channels_of_the_publication
App. C: schedule of the U-Net | experiments.lpba40.recipes.PRESETS
    experiments/test_paper_protocols.py::test_the_training_of_the_unet_is_the_papers
App. C: training patches with 5 % of foreground | experiments.lpba40.tiling.ForegroundPatches
    experiments/test_votenet.py::test_patches_have_a_twentieth_of_foreground
App. C: schedule of VoteNet+ | experiments.multi_atlas.presets.PRESETS
    experiments/test_paper_protocols.py::test_the_training_of_votenet_is_the_papers
App. C: binary cross-entropy of VoteNet+ | experiments.multi_atlas.votenet.VoteLoss
    experiments/test_votenet.py::test_padding_has_no_weight
App. C: patches, epochs and folds of VoteNet+ | experiments.multi_atlas.presets.PRESETS
    experiments/test_multi_atlas.py::test_lpba40_follows_the_paper
Sec. 4.3: U-Net, 72/40 tiles | experiments.lpba40.tiling.tiles_of
    experiments/test_tiling.py::test_the_paper_s_tiles_of_an_axis_of_181
Sec. 4.3: folds of 17/3/20, and of 10/3/10 within each | experiments.datasets.splits.nested_cross_validation
    experiments/test_splits.py::test_the_paper_s_nested_cross_validation
Sec. 4.3: the folds of each data set | experiments.lpba40.recipes.PRESETS
    experiments/test_lpba40.py::test_presets_follow_the_paper_s_protocol
Sec. 4.4: VoteNet+ | experiments.multi_atlas.votenet.VoteNet
    experiments/test_votenet.py::test_it_learns_where_images_agree
Sec. 4.4: 272, 51 and 340 pairs | experiments.multi_atlas.presets.PRESETS
    experiments/test_multi_atlas.py::test_the_split_is_the_papers
Sec. 4.4: from LPBA40 to both tables | experiments.multi_atlas.__main__.main
    experiments/test_multi_atlas.py::test_from_lpba40_to_tables
App. G: All and Boundary of the anatomical labels | experiments.multi_atlas.calibrating.anatomical_regions
    experiments/test_paper_protocols.py::test_regions_are_those_of_the_anatomical_labels
App. G: Boundary of VoteNet+ in Table 1 | experiments.multi_atlas.table.calibration_table
    experiments/test_paper_protocols.py::test_boundary_in_table_1_is_that_of_the_anatomical_labels
Tab. 2: printed numbers | experiments.multi_atlas.table.PAPER
    experiments/test_beside_paper.py::test_table_2_is_transcribed_whole
Tab. 2: Dice in All and in Boundary | experiments.multi_atlas.fusing.measures
    experiments/test_paper_protocols.py::test_measures_of_table_2_by_loops
Tab. 2: Best Fusion, Best Calibration | segcal.fusion.best_fusion
    fusion/test_voting.py::test_bounds_are_bounds
Tab. 2: changed voxels | segcal.fusion.table2.voxel_changes
    fusion/test_voting.py::test_changes_by_hand
Sec. 4.4: joint label fusion | segcal.fusion.joint_label_fusion_weights
    fusion/test_joint_label_fusion.py::test_closed_form_is_the_direct_solve
App. K: deformable registration | segcal.fusion.registration.register
    fusion/test_registration.py::test_registration_brings_labels_together
App. K: weighted voting | segcal.fusion.voting.weighted_vote
    fusion/test_voting.py::test_probability_is_the_share_of_the_weight
Sec. 4.4: voting | segcal.fusion.majority_vote
    fusion/test_voting.py::test_votes_are_counted
App. F: average and 95 % distance of surfaces, as printed | segcal.functional.surfaces.surface_distances
    functional/test_surfaces.py::test_distances_are_those_of_all_pairs
App. F: 95 % distance of volumes, the equation | segcal.functional.surfaces.percentile_distance
    functional/test_surfaces.py::test_volumes_follow_the_equation_of_the_paper
App. F: surface Dice, the equation | segcal.functional.surfaces.surface_dice
    functional/test_surfaces.py::test_surface_dice_follows_the_equation_of_the_paper
App. F: surface Dice by hand | segcal.functional.surfaces.surface_dice
    functional/test_surfaces.py::test_two_squares_by_hand
App. F, Tab. 2: Dice of volumes | segcal.functional.surfaces.segmentation_quality
    functional/test_surfaces.py::test_volume_dice_follows_the_equation_of_the_paper
Sec. 5: temperatures by bins | segcal.calibrators.binwise.BinwiseTemperatureScaling
    calibrators/test_temperature.py::test_each_bin_has_its_own_optimum
Sec. 5: attended samples of the classes | segcal.calibrators.temperature.AttendedTemperatureScaling
    calibrators/test_temperature.py::test_attended_loss_is_least
Sec. 5: LTS with bins or classes | segcal.calibrators.local.LocalTemperatureScaling
    calibrators/test_local.py::test_a_condition_is_learned_and_is_the_equation
"""
"""Rows of item | function, each with its test below."""

ROWS = re.findall(r"^(\S.*) \| (\S+)\n    (\S+)::(\w+)$", ITEMS, flags=re.MULTILINE)


def test_every_line_belongs_to_a_row_and_no_row_is_there_twice() -> None:
    assert 2 * len(ROWS) == len(ITEMS.strip().splitlines())
    assert len({(item, test) for item, _, _, test in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("function", "file", "test"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_every_item_is_computed_and_tested(function: str, file: str, test: str) -> None:
    found, name = resolve_name(function), function.rpartition(".")[2]
    text = (TESTS / file).read_text(encoding="utf-8")
    assert test in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    names = {name, f'"{getattr(found, "method", name)}"'}  # calibrators are built by the names of their methods
    assert any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text) for one in names)
