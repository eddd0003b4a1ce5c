"""Multi-atlas segmentation: register atlases to a target, weigh them by calibrated probabilities, fuse their labels."""

from segcal.fusion.joint_label_fusion import joint_label_fusion_weights, similarity_weights
from segcal.fusion.registration import Pair, RegistrationSettings, Volume, Warp, read_warp, register, register_pairs
from segcal.fusion.table2 import Changes, best_fusion, best_probabilities, voxel_changes
from segcal.fusion.voting import Fused, majority_vote, plurality_vote, staple, weighted_vote

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
