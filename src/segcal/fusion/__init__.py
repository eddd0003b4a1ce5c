"""Multi-atlas segmentation: register atlases to a target, weigh them by calibrated probabilities, fuse their labels."""

from segcal.fusion.bounds import best_fusion, best_probabilities
from segcal.fusion.changes import Changes, voxel_changes
from segcal.fusion.joint_label_fusion import joint_label_fusion_weights, similarity_weights
from segcal.fusion.registration import RegistrationSettings, Volume, Warp, register
from segcal.fusion.staple import staple
from segcal.fusion.voting import Fused, majority_vote, plurality_vote, weighted_vote
from segcal.fusion.warps import Pair, read_warp, register_pairs

__all__ = [
    "Changes",
    "Fused",
    "Pair",
    "RegistrationSettings",
    "Volume",
    "Warp",
    "best_fusion",
    "best_probabilities",
    "joint_label_fusion_weights",
    "majority_vote",
    "plurality_vote",
    "read_warp",
    "register",
    "register_pairs",
    "similarity_weights",
    "staple",
    "voxel_changes",
    "weighted_vote",
]
