"""The gradients of both perturbed phases' contrast, from their deviations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.engine.deviation import SCALE
from ebl.engine.fused import Fused, Perturbed
from ebl.engine.kernels import POOL, Update
from ebl.models.links import Conv


class Contrasts:
    """Buffers, and the pass that fills them."""

    def __init__(self, fused: Fused, batch: int):
        self.fused, self.batch = fused, batch
        f16 = {"dtype": torch.float16, "device": fused.device}
        self.patches: Tensor | None = None  # of convolutional networks: what each position of layer 1 sees of the image
        self.spread: Tensor | None = None
        first = fused.net.links[0]
        if isinstance(first, Conv):
            seen = -(-first.below_shape[0] * first.kernel_size**2 // 8) * 8  # in eights, as TMA wants them
            self.patches = torch.zeros(batch, *first.map_size, seen, **f16)
            self.spread = torch.zeros(batch, *first.map_size, fused.shapes[0][2], **f16)
            shape = (fused.shapes[0][2], 1, seen)
            self.first_product = torch.zeros(self._parts(torch.empty(shape, device="meta")), *shape, device=fused.device)
        self.below = [torch.zeros(2 * batch, *shape, **f16) for shape in fused.shapes]
        self.above: list[Tensor | None] = [None]
        self.products: list[Tensor | None] = [None]
        for k in range(1, fused.num_hidden):
            h, w, c = fused.shapes[k]
            grow = 2 if fused.ops[k].mode == POOL else 1
            self.above.append(torch.zeros(2 * batch, grow * h, grow * w, c, **f16))
            weights = fused.weights[k - 1]
            self.products.append(torch.zeros(self._parts(weights), *weights.shape, device=fused.device))

    def _parts(self, weights: Tensor) -> int:
        """Enough parts of the sum over positions to fill a GPU."""
        if self.fused.device.type == "cpu":
            return 1
        tiles = -(-weights.shape[0] // 128) * -(-weights.shape[2] // 128) * weights.shape[1]
        units = torch.cuda.get_device_properties(self.fused.device).multi_processor_count
        return max(1, 2 * units // tiles)

    @torch.no_grad()
    def gradients(self, phases: Perturbed, x: Tensor, extra: Tensor | None, signs: Tensor, factor: Tensor) -> list[Tensor]:
        """factor sum_b signs_b (s2 (x) u2 - s1 (x) u1) for every parameter, in the order of parameters(): weights, biases.

        x and `extra` are the images and what `Fused.drive` returned."""
        fused, net = self.fused, self.fused.net
        batch = self.batch
        factor = factor / SCALE
        by_weight, by_bias = [], []
        for k, layer in enumerate(phases.layers):
            above = self.above[k]
            fused.kernels.contrast(layer, signs, self.below[k], above)
            channels = len(net.biases[k])
            difference = self.below[k][:batch]
            by_bias.append(factor * fused.kernels.column_sums(difference)[:channels])
            if k == 0:
                by_weight.append(factor * self._first(difference, x, extra))
                continue
            products = self.products[k]
            assert above is not None
            assert products is not None
            fused.kernels.weight_gradient(fused.ops[k], self.below[k - 1], above, products)
            by_weight.append(_weights_like(net.weights[k], factor * products.sum(0)))
        last = phases.layers[-1]
        d1, d2 = last.d.float().flatten(1).chunk(2)
        mean = last.hi.float().flatten(1) + (d1 + d2) / (2 * SCALE)
        o1, o2 = phases.output.chunk(2)
        f = signs[:, None]
        d, height, width = factor * SCALE * f * (o2 - o1), *fused.shapes[-1][:2]
        readout = (factor * f * (d2 - d1)).t() @ ((o1 + o2) / 2) + mean.t() @ d
        channels = net.weights[-1].shape[0] // (height * width)
        maps = readout.view(height, width, -1, readout.shape[1])[:, :, :channels]
        by_weight.append(maps.permute(2, 0, 1, 3).flatten(0, 2))
        by_bias.append(d.sum(0))
        return by_weight + by_bias

    def _first(self, difference: Tensor, x: Tensor, extra: Tensor | None) -> Tensor:
        """Layer 1's weight gradient. Both phases see one image, so one position won: the difference is all that counts."""
        fused = self.fused
        link, w = fused.net.links[0], fused.net.weights[0]
        if self.patches is None or self.spread is None:
            return link.weight_gradient(difference[:, 0, 0, : w.shape[1]].float(), x, None)
        assert isinstance(link, Conv)
        size, k, p = w[0].numel(), link.kernel_size, link.padding
        image = F.pad(x, (p, p, p, p)).unfold(2, k, 1).unfold(3, k, 1)  # (B, C, H, W, k, k), a view
        self.patches[..., :size].unflatten(-1, (-1, k, k)).copy_(image.permute(0, 2, 3, 1, 4, 5))
        fused.kernels.spread(difference, extra, self.spread)
        fused.kernels.weight_gradient(Update(POOL, False, 1, 0), self.patches, self.spread, self.first_product)
        return self.first_product.sum(0)[: len(w), 0, :size].view_as(w)


def _weights_like(w: Tensor, found: Tensor) -> Tensor:
    """(N, taps, C) in the order of a link's weights."""
    if w.dim() == 2:
        return found[: w.shape[1], 0, : w.shape[0]].t()
    n, c, height, width = w.shape
    return found[:n, :, :c].reshape(n, height, width, c).permute(0, 3, 1, 2)
