"""A small GPT over bytes: real enough to learn, small enough for a laptop core.

The vocabulary is the 256 byte values, so there is no tokenizer. Blocks are pre-norm (RMSNorm) with rotary positions
(RoFormer, Su et al. 2021, equation 34), causal attention and a GELU MLP, all without biases. There are no buffers:
everything that learners must agree on is a parameter. Values at the start depend on the seed alone, never on the
caller's random state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zdiloco.train.params import GPTConfig

VOCAB = 256  # the values of one byte
ROTARY_BASE = 10_000.0


class ByteGPT(nn.Module):
    """A causal language model of bytes; untied head `lm_head`, no bias, no buffer, no dropout.

    Two models of equal `config` and `seed` hold the same bits, and making one leaves torch's random state untouched.
    """

    def __init__(self, config: GPTConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            self.embed = nn.Embedding(VOCAB, config.width)
            self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
            self.norm = nn.RMSNorm(config.width)
            self.lm_head = nn.Linear(config.width, VOCAB, bias=False)
        self._start(torch.Generator().manual_seed(seed))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, 256) for the byte after each of `tokens` (B, T) int64; position t sees only 0..t."""
        turn = _rotation(tokens.shape[1], self.config.width // self.config.heads, tokens.device)
        x = self.embed(tokens)  # (B, T, width)
        for block in self.blocks:
            x = block(x, turn)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean nats a byte, a scalar, of predicting each byte of `tokens` (B, T+1) int64 but the first."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def _start(self, rng: torch.Generator) -> None:
        """Normal values: 0.2 for the embedding (0.02 learns slower here), 0.02 for the head, else 0.5/sqrt(fan-in)."""
        depth = math.sqrt(2 * self.config.layers)  # what each block adds shrinks with depth, as in GPT-2
        for name, p in self.named_parameters():
            if p.dim() < 2:
                p.fill_(1.0)
                continue
            std = {"embed.weight": 0.2, "lm_head.weight": 0.02}.get(name, 0.5 / math.sqrt(p.shape[1]))
            if name.endswith(("attn_out.weight", "mlp_out.weight")):
                std /= depth
            p.normal_(0.0, std, generator=rng)


class _Block(nn.Module):
    """Attention, then MLP, each on a normalised copy of the stream and added to it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.heads = config.heads
        self.attn_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp_in = nn.Linear(width, hidden, bias=False)
        self.mlp_out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Map the stream (B, T, width) to the next one of the same shape; `turn` is cosines and sines (T, head/2)."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attn_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, head)
        mixed = F.scaled_dot_product_attention(_rotate(q, turn), _rotate(k, turn), v, is_causal=True)
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))
        return x + added


def _rotation(length: int, head: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, head/2) fp32 of position times frequency; cheap, so made anew for each forward."""
    half = head // 2
    frequency = ROTARY_BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + head/2) of `x` (B, heads, T, head) by its position's angle; lengths stay."""
    cos, sin = (t.to(x.dtype) for t in turn)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
