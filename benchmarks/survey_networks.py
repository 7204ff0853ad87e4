"""Networks that nobody named, for surveys of a GPU: recurrences, graphs, points, fields, flows,
forecasts and operators, each small and written from its paper.

`build(name, batch)` gives a network in evaluation mode, with seeded weights, and its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.other_networks import Network, Rows, draw, seeded


class SpeechRecurrent(nn.Module):
    """Deep Speech 2 (Amodei et al., arXiv:1512.02595): convolutions, layers of GRU both ways."""

    def __init__(self, width: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)),
            *(nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)),
        )
        self.layers = nn.GRU(32 * 40, width, depth, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 29)

    def forward(self, x: Tensor) -> Tensor:
        """Maps spectrograms [N, 1, 160, T] to scores [N, T / 2, 29]."""
        rows = self.body(x).flatten(1, 2).transpose(1, 2)
        scores: Tensor = self.head(self.layers(rows)[0])
        return scores


class Translator(nn.Module):
    """Bahdanau et al. (arXiv:1409.0473): an encoder both ways, and a decoder that looks at it."""

    def __init__(self, words: int = 8000, width: int = 256, steps: int = 24) -> None:
        super().__init__()
        self.steps = steps
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(3 * width, width)
        self.keys, self.query = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.energy, self.head = nn.Linear(width, 1), nn.Linear(width, words)

    def forward(self, ids: Tensor, given: Tensor) -> Tensor:
        """Maps tokens [N, S] and [N, T] to scores [N, T, words]."""
        rows = self.encoder(self.source(ids))[0]
        keys, state, states = self.keys(rows), rows[:, 0, : self.query.in_features], []
        words = self.target(given)
        for step in range(self.steps):
            energy = self.energy(torch.tanh(keys + self.query(state)[:, None]))
            seen = (energy.softmax(1) * rows).sum(1)
            state = self.cell(torch.cat([words[:, step], seen], 1), state)
            states.append(state)
        scores: Tensor = self.head(torch.stack(states, 1))
        return scores


class ConvLstm(nn.Module):
    """Shi et al., arXiv:1506.04214: an LSTM whose products are convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps frames [N, T, 1, H, W] to the next frame [N, 1, H, W]."""
        state = x.new_zeros(x.shape[0], self.width, *x.shape[3:])
        cell = state
        for step in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, step], state], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        frame: Tensor = self.head(state)
        return frame


class Simple(nn.Module):
    """Simple recurrent units (Lei et al., arXiv:1709.02755): products ahead, steps of formulas."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, T, width] to the same."""
        for layer in self.layers:
            new, forget, reset = layer(x).chunk(3, -1)
            forget, reset = torch.sigmoid(forget), torch.sigmoid(reset)
            cell, cells = torch.zeros_like(x[:, 0]), []
            for step in range(x.shape[1]):
                cell = forget[:, step] * cell + (1 - forget[:, step]) * new[:, step]
                cells.append(cell)
            x = reset * torch.tanh(torch.stack(cells, 1)) + (1 - reset) * x
        return x


class EdgeNet(nn.Module):
    """DGCNN (Wang et al., arXiv:1801.07829): a graph of the nearest neighbours a layer."""

    def __init__(self, near: int = 20) -> None:
        super().__init__()
        self.near = near
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in ((3, 64), (64, 64), (64, 128))
        )
        self.join = nn.Sequential(nn.Conv1d(256, 512, 1), nn.BatchNorm1d(512), nn.LeakyReLU(0.2))
        self.head = nn.Linear(512, 40)

    def forward(self, x: Tensor) -> Tensor:
        """Maps points [N, 3, P] to scores [N, 40]."""
        found = []
        for layer in self.layers:
            square = x.square().sum(1)
            apart = 2 * x.transpose(1, 2) @ x - square[:, :, None] - square[:, None]
            at = apart.topk(self.near, -1).indices
            rows = x.transpose(1, 2)
            index = at.flatten(1)[:, :, None].expand(-1, -1, x.shape[1])
            beside = rows.gather(1, index).unflatten(1, (-1, self.near))
            own = rows[:, :, None].expand_as(beside)
            x = layer(torch.cat([beside - own, own], -1).permute(0, 3, 1, 2)).amax(-1)
            found.append(x)
        scores: Tensor = self.head(self.join(torch.cat(found, 1)).amax(2))
        return scores


class SetNet(nn.Module):
    """PointNet++ (Qi et al., arXiv:1706.02413), a level: farthest points, their nearest, a net."""

    def __init__(self, centres: int = 64, near: int = 32) -> None:
        super().__init__()
        self.centres, self.near = centres, near
        self.body = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        """Maps points [N, P, 3] to scores [N, 40]."""
        chosen, last = [], x[:, :1]
        apart = torch.full_like(x[..., 0], 60000.0)
        for _ in range(self.centres):
            chosen.append(last)
            apart = torch.minimum(apart, (x - last).square().sum(-1))
            at = apart.argmax(1)[:, None, None].expand(-1, 1, 3)
            last = x.gather(1, at)
        centres = torch.cat(chosen, 1)
        square = (centres[:, :, None] - x[:, None]).square().sum(-1)
        at = square.topk(self.near, -1, largest=False).indices.flatten(1)[:, :, None]
        beside = x.gather(1, at.expand(-1, -1, 3)).unflatten(1, (self.centres, self.near))
        rows = self.body(beside - centres[:, :, None]).amax(2)
        scores: Tensor = self.head(rows.amax(1))
        return scores


class EdgeAttention(nn.Module):
    """Graph attention (arXiv:1710.10903) over a list of edges: a softmax of each node's edges."""

    def __init__(self, inputs: int = 64, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        sizes = [inputs] + [heads * width] * depth
        self.enter = nn.ModuleList(nn.Linear(s, heads * width) for s in sizes[:-1])
        self.left = nn.Parameter(torch.randn(depth, heads, width) / 8)
        self.right = nn.Parameter(torch.randn(depth, heads, width) / 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Maps features [nodes, inputs] and edges [2, E] to features."""
        source, target = edges[0], edges[1]
        for index, enter in enumerate(self.enter):
            h = enter(x).unflatten(-1, (self.heads, self.width))
            left, right = ((h * side[index]).sum(-1) for side in (self.left, self.right))
            score = functional.leaky_relu(left[source] + right[target], 0.2)
            where = target[:, None].expand_as(score)
            most = torch.zeros_like(left).scatter_reduce(0, where, score, "amax")
            weight = (score - most[target]).exp()
            total = torch.zeros_like(left).index_add(0, target, weight)
            mixed = torch.zeros_like(h).index_add(0, target, weight[..., None] * h[source])
            x = functional.elu(mixed / (total[..., None] + 1e-3)).flatten(1)
        return x


class Molecules(nn.Module):
    """SchNet (Schütt et al., arXiv:1706.08566): filters of distances, molecules of one batch."""

    def __init__(self, width: int = 64, depth: int = 3, molecules: int = 64) -> None:
        super().__init__()
        self.molecules = molecules
        self.atoms = nn.Embedding(100, width)
        self.register_buffer("centres", torch.linspace(0, 5, 50))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.enter = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.leave = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor, owner: Tensor) -> Tensor:
        """Maps atoms [A], places [A, 3], edges [2, E] and molecules [A] to energies."""
        x, (source, target) = self.atoms(kinds), (edges[0], edges[1])
        apart = (places[source] - places[target]).square().sum(-1).add(1e-3).sqrt()
        basis = torch.exp(-10 * (apart[:, None] - self.centres).square())
        for filters, enter, leave in zip(self.filters, self.enter, self.leave, strict=True):
            moved = enter(x)[source] * filters(basis)
            x = x + leave(torch.zeros_like(x).index_add(0, target, moved))
        energy = self.head(x)
        return energy.new_zeros(self.molecules, 1).index_add(0, owner, energy)


class DiffusionTransformer(nn.Module):
    """DiT (Peebles and Xie, arXiv:2212.09748): norms scaled and shifted by a step's time."""

    def __init__(self, width: int = 384, depth: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.heads, self.patches = heads, nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(256, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("rates", torch.exp(-9.2 * torch.arange(128) / 128))
        self.parts = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(depth))
        self.turn = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.net = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, 2 * 2 * 8)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Maps latents [N, 4, 32, 32] and times [N] to what is predicted, [N, 8, 32, 32]."""
        angle = time[:, None] * self.rates
        given = functional.silu(self.time(torch.cat([angle.cos(), angle.sin()], 1)))
        rows = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for parts, turn, out, net in zip(self.parts, self.turn, self.out, self.net, strict=True):
            a, b, c, d, e, f = parts(given)[:, None].chunk(6, -1)
            y = self.norm(rows) * (1 + b) + a
            q, k, v = (
                p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in turn(y).chunk(3, -1)
            )
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            rows = rows + c * out(y)
            rows = rows + f * net(self.norm(rows) * (1 + e) + d)
        y = self.head(self.norm(rows)).unflatten(1, (16, 16)).unflatten(-1, (2, 2, 8))
        return y.permute(0, 5, 1, 3, 2, 4).reshape(-1, 8, 32, 32)


class Volumes(nn.Module):
    """A 3-D U-Net (Çiçek et al., arXiv:1606.06650), instance norms as nnU-Net has."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        sizes = [width << i for i in range(depth + 1)]

        def pair(a: int, b: int) -> nn.Module:
            layers: list[nn.Module] = []
            for c in (a, b):
                layers += [nn.Conv3d(c, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True)]
                layers.append(nn.LeakyReLU(0.01))
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(pair(a, b) for a, b in zip([1, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(s, s // 2, 2, 2) for s in sizes[:0:-1])
        self.join = nn.ModuleList(pair(s, s // 2) for s in sizes[:0:-1])
        self.head = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps volumes [N, 1, D, H, W] to scores [N, 3, D, H, W]."""
        kept = []
        for index, layer in enumerate(self.down):
            x = layer(functional.max_pool3d(x, 2) if index else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        scores: Tensor = self.head(x)
        return scores


class Generator(nn.Module):
    """StyleGAN 2 (Karras et al., arXiv:1912.04958): a style scales the weights of each image."""

    def __init__(self, width: int = 128, depth: int = 5) -> None:
        super().__init__()
        self.map = nn.Sequential(
            *(m for _ in range(4) for m in (nn.Linear(128, 128), nn.LeakyReLU(0.2)))
        )
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.style = nn.ModuleList(nn.Linear(128, width) for _ in range(depth))
        self.weights = nn.Parameter(torch.randn(depth, width, width, 3, 3) / 32)
        self.image = nn.ModuleList(nn.Conv2d(width, 3, 1) for _ in range(depth))

    def forward(self, z: Tensor) -> Tensor:
        """Maps numbers [N, 128] to images [N, 3, 128, 128]."""
        count, w = z.shape[0], self.map(z)
        x, image = self.start.expand(count, -1, -1, -1), None
        for index, (style, out) in enumerate(zip(self.style, self.image, strict=True)):
            x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            weight = self.weights[index] * (1 + style(w))[:, None, :, None, None]
            weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-3).rsqrt()
            y = functional.conv2d(
                x.flatten(0, 1)[None], weight.flatten(0, 1), padding=1, groups=count
            )
            x = functional.leaky_relu(y[0].unflatten(0, (count, -1)), 0.2)
            image = (
                out(x)
                if image is None
                else out(x) + functional.interpolate(image, scale_factor=2.0, mode="bilinear")
            )
        assert image is not None
        return image


class Fourier(nn.Module):
    """A Fourier neural operator (Li et al., arXiv:2010.08895) of two dimensions."""

    def __init__(self, width: int = 32, modes: int = 12, depth: int = 4) -> None:
        super().__init__()
        self.modes, self.enter = modes, nn.Conv2d(3, width, 1)
        self.real = nn.Parameter(torch.randn(depth, width, width, modes, modes) / width)
        self.imag = nn.Parameter(torch.randn(depth, width, width, modes, modes) / width)
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps fields [N, 3, H, W] to fields [N, 1, H, W]."""
        x = self.enter(x)
        for index, beside in enumerate(self.beside):
            wave = torch.fft.rfft2(x)[:, :, : self.modes, : self.modes]
            a, b, c, d = wave.real, wave.imag, self.real[index], self.imag[index]
            real = torch.einsum("ncxy,coxy->noxy", a, c) - torch.einsum("ncxy,coxy->noxy", b, d)
            imag = torch.einsum("ncxy,coxy->noxy", a, d) + torch.einsum("ncxy,coxy->noxy", b, c)
            more = (0, x.shape[3] // 2 + 1 - self.modes, 0, x.shape[2] - self.modes)
            wave = torch.complex(functional.pad(real, more), functional.pad(imag, more))
            x = functional.gelu(torch.fft.irfft2(wave, s=x.shape[2:]) + beside(x))
        field: Tensor = self.head(x)
        return field


class Stacks(nn.Module):
    """N-BEATS (Oreshkin et al., arXiv:1905.10437): blocks that take off what they explain."""

    def __init__(
        self, past: int = 120, ahead: int = 24, width: int = 256, blocks: int = 12
    ) -> None:
        super().__init__()
        self.past = past
        self.body = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
                *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + ahead)),
            )
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps series [N, past] to forecasts [N, ahead]."""
        total = torch.zeros_like(x[:, :1])
        for body in self.body:
            back, ahead = body(x).tensor_split((self.past,), -1)
            x, total = x - back, total + ahead
        return total


class Flow(nn.Module):
    """RealNVP (Dinh et al., arXiv:1605.08803): couplings of halves, and the density of it all."""

    def __init__(self, width: int = 64, depth: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(width // 2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()),
                nn.Linear(hidden, width),
            )
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, width] to its log density, [N, 1]."""
        left, right = x.chunk(2, 1)
        total = torch.zeros_like(x[:, :1])
        for net in self.nets:
            scale, shift = net(left).chunk(2, 1)
            scale = torch.tanh(scale)
            left, right = right * torch.exp(scale) + shift, left
            total = total + scale.sum(1, keepdim=True)
        return total - 0.5 * (left.square() + right.square()).sum(1, keepdim=True)


class Experts(nn.Module):
    """A mixture of experts (Shazeer et al., arXiv:1701.06538), all computed, the best two taken."""

    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / 16)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / 32)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, T, width] to the same."""
        rows = x.flatten(0, 1)
        best = self.gate(rows).topk(2, -1)
        weights = torch.zeros_like(self.gate(rows)).scatter(
            1, best.indices, best.values.softmax(-1)
        )
        y = functional.gelu(torch.einsum("nd,edh->enh", rows, self.up))
        y = torch.einsum("enh,ehd->end", y, self.down)
        return torch.einsum("end,ne->nd", y, weights).view_as(x)


class LinearAttention(nn.Module):
    """Performers (Choromanski et al., arXiv:2009.14794), causal: running sums of keys by values."""

    def __init__(self, width: int = 256, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.turn = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, T, width] to the same."""
        for turn, out in zip(self.turn, self.out, strict=True):
            parts = turn(x).chunk(3, -1)
            q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
            q, k = functional.elu(q) + 1, functional.elu(k) + 1
            sums = (k[..., :, None] * v[..., None, :]).cumsum(2)
            below = (q * k.cumsum(2)).sum(-1, keepdim=True)
            y = (q[..., None, :] @ sums).squeeze(-2) / below
            x = x + out(y.transpose(1, 2).flatten(2))
        return x


class Rays(nn.Module):
    """Volume rendering (arXiv:2003.08934): samples of rays, a net, products along each ray."""

    def __init__(self, samples: int = 64, width: int = 128) -> None:
        super().__init__()
        self.register_buffer("depths", torch.linspace(0.1, 4, samples))
        self.register_buffer("scales", 2.0 ** torch.arange(6))
        self.net = nn.Sequential(
            *(nn.Linear(36, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
            *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)),
        )

    def forward(self, origins: Tensor, ways: Tensor) -> Tensor:
        """Maps origins and ways of rays [R, 3] to colours [R, 3]."""
        places = origins[:, None] + ways[:, None] * self.depths[:, None]
        angles = (places[..., None] * self.scales).flatten(-2)
        y = self.net(torch.cat([angles.sin(), angles.cos()], -1))
        opaque = 1 - torch.exp(-functional.softplus(y[..., 3]) * 0.06)
        left = torch.cumprod(1 - opaque + 1e-4, 1)
        weight = opaque * torch.cat([torch.ones_like(left[:, :1]), left[:, :-1]], 1)
        return (weight[..., None] * torch.sigmoid(y[..., :3])).sum(1)


class Warped(nn.Module):
    """Spatial transformers (Jaderberg et al., arXiv:1506.02025) and a flow between two images."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.find = nn.Sequential(
            *(nn.Conv2d(6, width, 7, 4, 3), nn.ReLU(), nn.Conv2d(width, width, 5, 4, 2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 6)),
        )
        self.flow = nn.Sequential(
            *(nn.Conv2d(6, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.ReLU(), nn.Conv2d(width, 2, 3, padding=1)),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to one between them."""
        theta = self.find(torch.cat([x, y], 1)).unflatten(1, (2, 3))
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        x = functional.grid_sample(x, grid, align_corners=False)
        flow = self.flow(torch.cat([x, y], 1)).permute(0, 2, 3, 1)
        return functional.grid_sample(x, grid + 0.1 * torch.tanh(flow), align_corners=False) + y


class Boxes(nn.Module):
    """CenterNet (Zhou et al., arXiv:1904.07850): peaks of a map, the best hundred, their boxes."""

    def __init__(self, width: int = 64, classes: int = 80) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, width, 7, 4, 3), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        )
        self.heat, self.size = nn.Conv2d(width, classes, 1), nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to boxes, scores and classes [N, 100, 6]."""
        x = self.body(x)
        heat = torch.sigmoid(self.heat(x))
        heat = heat * (functional.max_pool2d(heat, 3, 1, 1) == heat)
        best, at = heat.flatten(1).topk(100)
        places = heat.shape[2] * heat.shape[3]
        kind, place = at // places, at % places
        sizes = self.size(x).flatten(2).transpose(1, 2)
        sizes = sizes.gather(1, place[:, :, None].expand(-1, -1, 4))
        return torch.cat([sizes, best[..., None], kind[..., None].to(x.dtype)], -1)


class Quantized(nn.Module):
    """VQ-VAE (van den Oord et al., arXiv:1711.00937): the nearest of 512 rows for each position."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)),
        )
        self.rows = nn.Parameter(torch.randn(512, width))
        self.decode = nn.Sequential(
            *(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU()),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to images."""
        x = self.encode(x).permute(0, 2, 3, 1)
        apart = torch.cdist(x.flatten(0, 2)[None], self.rows[None])[0]
        y = self.rows[apart.argmin(1)].view_as(x).permute(0, 3, 1, 2)
        image: Tensor = self.decode(y)
        return image


class Crossed(nn.Module):
    """xDeepFM (Lian et al., arXiv:1803.05170) and DCN (arXiv:1708.05123): products of fields."""

    def __init__(self, fields: int = 26, rows: int = 20_000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.Embedding(fields * rows, width)
        self.register_buffer("first", torch.arange(fields) * rows)
        sizes = (fields, 64, 64)
        self.mixes = nn.ModuleList(nn.Conv1d(fields * s, 64, 1) for s in sizes)
        self.cross = nn.ModuleList(nn.Linear(fields * width, fields * width) for _ in range(3))
        self.head = nn.Linear(3 * 64 + fields * width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps categories [N, fields] to scores [N, 1]."""
        rows = self.tables(ids + self.first)
        x, found = rows, []
        for mix in self.mixes:
            x = functional.relu(mix((rows[:, :, None] * x[:, None]).flatten(1, 2)))
            found.append(x.sum(2))
        start = y = rows.flatten(1)
        for cross in self.cross:
            y = start * cross(y) + y
        return torch.sigmoid(self.head(torch.cat([*found, y], 1)))


class Interest(nn.Module):
    """DIN (Zhou et al., arXiv:1706.06978): a history of items, weighed by the one that is shown."""

    def __init__(self, items: int = 50_000, width: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.weigh = nn.Sequential(nn.Linear(4 * width, 80), nn.PReLU(), nn.Linear(80, 1))
        self.head = nn.Sequential(nn.Linear(2 * width, 200), nn.PReLU(), nn.Linear(200, 1))

    def forward(self, history: Tensor, shown: Tensor, length: Tensor) -> Tensor:
        """Maps items [N, T], an item [N] and lengths [N] to scores [N, 1]."""
        rows, item = self.items(history), self.items(shown)
        beside = item[:, None].expand_as(rows)
        weight = self.weigh(torch.cat([rows, beside, rows - beside, rows * beside], -1))
        seen = torch.arange(history.shape[1], device=history.device) < length[:, None]
        weight = torch.where(seen[..., None], weight, 0.0)
        score: Tensor = self.head(torch.cat([(weight * rows).sum(1), item], 1))
        return torch.sigmoid(score)


class Integrated(nn.Module):
    """A neural differential equation (Chen et al., arXiv:1806.07366) by Runge and Kutta's steps."""

    def __init__(self, width: int = 64, steps: int = 16) -> None:
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(nn.Linear(width, 128), nn.Tanh(), nn.Linear(128, width))

    def forward(self, x: Tensor) -> Tensor:
        """Maps states [N, width] to later ones."""
        size = 1 / self.steps
        for _ in range(self.steps):
            a = self.net(x)
            b = self.net(x + 0.5 * size * a)
            c = self.net(x + 0.5 * size * b)
            d = self.net(x + size * c)
            x = x + size / 6 * (a + 2 * b + 2 * c + d)
        return x


class Capsules(nn.Module):
    """Capsules (Sabour et al., arXiv:1710.09829), three rounds of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 128, 9), nn.ReLU(), nn.Conv2d(128, 256, 9, 2))
        self.weights = nn.Parameter(torch.randn(10, 1152, 8, 16) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 1, 28, 28] to lengths [N, 10]."""
        rows = _squash(self.body(x).unflatten(1, (32, 8)).permute(0, 1, 3, 4, 2).flatten(1, 3))
        votes = (rows[:, None, :, None] @ self.weights).squeeze(-2)
        logits, found = votes.new_zeros(*votes.shape[:3], 1), votes
        for _ in range(3):
            found = _squash((logits.softmax(1) * votes).sum(2, keepdim=True))
            logits = logits + (found * votes).sum(-1, keepdim=True)
        return found.squeeze(2).norm(dim=-1)


def _squash(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x * torch.rsqrt(square + 1e-3)


class Shuffled(nn.Module):
    """Pixels to channels and back (Shi et al., arXiv:1609.05158), channel attention between (RCAN,
    Zhang et al., arXiv:1807.02758)."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.head = nn.Conv2d(12, width, 3, padding=1)
        self.bodies = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(width, width, 3, padding=1), nn.PReLU()),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(depth)
        )
        self.gates = nn.ModuleList(
            nn.Sequential(
                *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 4, 1), nn.ReLU()),
                *(nn.Conv2d(4, width, 1), nn.Sigmoid()),
            )
            for _ in range(depth)
        )
        self.tail = nn.Conv2d(width, 48, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to [N, 3, 2 H, 2 W]."""
        x = self.head(functional.pixel_unshuffle(x, 2))
        for body, gate in zip(self.bodies, self.gates, strict=True):
            y = body(x)
            x = x + y * gate(y)
        return functional.pixel_shuffle(self.tail(x), 4)


def _edges(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(1000 * batch, 64), torch.randint(1000 * batch, (2, 5000 * batch))


def _molecules(batch: int) -> tuple[Tensor, ...]:
    atoms = 64 * 18
    edges = torch.randint(18, (2, 12 * atoms)) + 18 * torch.randint(64, (12 * atoms,))
    return torch.randint(100, (atoms,)), torch.rand(atoms, 3) * 4, edges, torch.arange(atoms) // 18


NETWORKS: dict[str, Network] = {
    "speech_recurrent": (SpeechRecurrent, draw((1, 160, 80))),
    "translator": (Translator, lambda n: tuple(torch.randint(8000, (n, t)) for t in (30, 24))),
    "conv_lstm": (ConvLstm, draw((10, 1, 64, 64))),
    "simple_recurrent": (Simple, draw((64, 256))),
    "lstm_stack": (lambda: Rows(nn.LSTM(128, 512, 3, batch_first=True)), draw((64, 128))),
    "lstm_projected": (
        lambda: Rows(nn.LSTM(80, 512, 2, batch_first=True, proj_size=128)),
        draw((64, 80)),
    ),
    "gru_both": (
        lambda: Rows(nn.GRU(128, 256, 2, batch_first=True, bidirectional=True)),
        draw((64, 128)),
    ),
    "edge_net": (EdgeNet, draw((3, 1024))),
    "set_net": (SetNet, draw((1024, 3))),
    "edge_attention": (EdgeAttention, _edges),
    "molecules": (Molecules, _molecules),
    "diffusion_transformer": (
        DiffusionTransformer,
        lambda n: (torch.randn(n, 4, 32, 32), torch.rand(n)),
    ),
    "volumes_unet": (Volumes, draw((1, 64, 64, 64))),
    "styled_generator": (Generator, draw((128,))),
    "fourier_operator": (Fourier, draw((3, 64, 64))),
    "forecast_stacks": (Stacks, draw((120,))),
    "coupling_flow": (Flow, draw((64,))),
    "experts": (Experts, draw((64, 256))),
    "linear_attention": (LinearAttention, draw((256, 256))),
    "rays": (Rays, lambda n: (torch.randn(512 * n, 3), torch.randn(512 * n, 3))),
    "warped": (Warped, draw((3, 128, 128), (3, 128, 128))),
    "boxes": (Boxes, draw((3, 512, 512))),
    "vector_quantized": (Quantized, draw((3, 128, 128))),
    "crossed_fields": (Crossed, lambda n: (torch.randint(20_000, (n, 26)),)),
    "interest": (
        Interest,
        lambda n: (
            torch.randint(50_000, (n, 50)),
            torch.randint(50_000, (n,)),
            torch.randint(1, 50, (n,)),
        ),
    ),
    "integrated": (Integrated, draw((64,))),
    "capsules": (Capsules, draw((1, 28, 28))),
    "channel_attention": (Shuffled, draw((3, 128, 128))),
}


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network of NETWORKS in evaluation mode and its inputs, seeded."""
    return seeded(NETWORKS[name], batch)
