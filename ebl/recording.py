"""Whether a CUDA graph is being recorded: values cannot be looked at meanwhile, so checks of them were made before."""

from __future__ import annotations

import torch


def recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
