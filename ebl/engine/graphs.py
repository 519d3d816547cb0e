"""CUDA graphs of a step's variants: run once as it is, recorded at the second call, replayed from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class Graphs:
    """The first call compiles and checks what it needs, so nothing has to be undone after a rehearsal."""

    def __init__(self, device: torch.device, wanted: bool = True):
        self.wanted = wanted and device.type == "cuda"
        self.met: set[Hashable] = set()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.wanted else None

    def run(self, key: Hashable, body: Callable[[], None]) -> None:
        """Run `body`, which works on fixed buffers alone and looks at none of their values."""
        if not self.wanted or key not in self.met:
            self.met.add(key)
            body()
            return
        if key not in self.graphs:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                body()
            self.graphs[key] = graph
        self.graphs[key].replay()
