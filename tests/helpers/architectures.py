"""Small models of many kinds, each with an input, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(self.lstm(self.embedding(tokens))[0][:, -1])  # type: ignore[no-any-return]


class Translator(nn.Module):
    """An encoder and a decoder of GRUs."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(11, 6), nn.Embedding(12, 6)
        self.encoder, self.decoder = nn.GRU(6, 8, batch_first=True), nn.GRU(6, 8, batch_first=True)
        self.out = nn.Linear(8, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        _, state = self.encoder(self.source(tokens))
        return self.out(self.decoder(self.target(tokens), state)[0])  # type: ignore[no-any-return]


class HeadFirst(nn.Module):
    """The head is registered first; its name and that of the rest are given."""

    def __init__(self, head: str = "head", body: str = "body") -> None:
        super().__init__()
        self.names = head, body
        self.add_module(head, nn.Linear(8, 3))
        self.add_module(body, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)))

    def forward(self, x: Tensor) -> Tensor:
        head, body = (self.get_submodule(name) for name in self.names)
        return head(body(x))  # type: ignore[no-any-return]


class Policy(nn.Module):
    """A trunk with several heads; policy and value by default."""

    def __init__(self, *names: str, sizes: tuple[int, ...] = (4, 1)) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.names = names or ("policy", "value")
        for name, size in zip(self.names, sizes, strict=True):
            self.add_module(name, nn.Linear(8, size))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.get_submodule(name)(self.trunk(x)) for name in self.names)


class ActorCritic(nn.Module):
    """Two networks that share nothing; the distribution of the actor is an object, not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self.double(2, 4), self.double(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.join = self.double(8, 4)
        self.outc = nn.Conv2d(4, 3, 1)

    @staticmethod
    def double(inputs: int, outputs: int) -> nn.Sequential:
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        across = self.down1(x)
        below = self.up(self.down2(nn.functional.max_pool2d(across, 2)))
        return self.outc(self.join(torch.cat([across, below], 1)))  # type: ignore[no-any-return]


class GAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(noise)
        return made, self.discriminator(made.detach())


class TwoTowers(nn.Module):
    """A recommender: the score of a user and an item is the product of two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(11, 6), nn.Embedding(12, 6)
        self.user_tower = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        self.item_tower = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.user_tower(self.users(tokens)) * self.item_tower(self.items(tokens))).sum(-1)  # type: ignore[no-any-return]


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weights, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.code = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(relu(self.encoder(x)))
        return linear(relu(linear(code, self.code.weight.t())), self.encoder.weight.t())


class GraphConvolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return edges @ self.lin(x)  # type: ignore[no-any-return]


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GraphConvolution(6, 8), GraphConvolution(8, 8), GraphConvolution(8, 3)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = relu(conv(x, edges))
        return self.convs[-1](x, edges)  # type: ignore[no-any-return]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(3, 8, 6)), nn.Parameter(torch.randn(3, 6, 8))

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        hidden = relu(torch.einsum("bi,eoi->ebo", x, self.w1))
        return torch.einsum("ebi,eoi,be->bo", hidden, self.w2, shares)


class Mixture(nn.Module):
    """A mixture of experts in one parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = Experts()
        self.output = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x + self.experts(x, self.router(x).softmax(-1)))  # type: ignore[no-any-return]


class Conv1D(nn.Module):
    """As that of Hugging Face: a linear layer whose weight is (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))


class GPTNeoXAttention(nn.Module):
    """As that of Hugging Face: query, key and value of each head follow each other in one weight."""

    __module__ = "transformers.models.gpt_neox"

    def __init__(self, width: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.head_size = width // heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.narrow(relu(self.wide(x)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A transformer without a head."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A linear layer feeds the recurrent one, which is the last: there is no head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.enter(x)[None])[0]  # type: ignore[no-any-return]


def convolutional() -> nn.Sequential:
    features = (nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))


def tokens() -> Tensor:
    return torch.arange(10).reshape(2, 5)


def rows() -> Tensor:
    return torch.ones(5, 6)


def image() -> Tensor:
    return torch.ones(2, 2, 8, 8)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "LSTM classifier": (LSTMClassifier, tokens),
    "GRU encoder-decoder": (Translator, tokens),
    "head first": (HeadFirst, rows),
    "actor-critic, one trunk": (Policy, rows),
    "actor-critic, two networks": (ActorCritic, rows),
    "several heads without known names": (lambda: Policy("steer", "brake", sizes=(3, 2)), rows),
    "convolutional": (convolutional, image),
    "U-Net": (UNet, image),
    "GAN": (GAN, lambda: torch.ones(2, 4)),
    "two towers": (TwoTowers, tokens),
    "tied autoencoder": (TiedAutoencoder, rows),
    "graph convolution": (GraphNetwork, lambda: (rows(), torch.eye(5))),
    "mixture of experts": (Mixture, rows),
    "encoder without a head": (Encoder, tokens),
    "encoder of one block": (lambda: Encoder(1), tokens),
    "recurrent layer last": (Recurrent, rows),
}
"""By name: the model, and an input for `example=`."""
