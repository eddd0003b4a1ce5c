"""Turns of threads on a GPU: while one of them records a CUDA graph, no other thread of segcal steps or waits for it.

CUDA ends a recording with an error when anybody in the process waits for the whole device, and PyTorch can record only
one graph at a time.
"""

from __future__ import annotations

from threading import RLock

device_turn = RLock()
"""Lock held by a training step, recorded or not, and by a thread that waits for the whole device."""
