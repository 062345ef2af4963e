"""Networks and their named initialisers. A model says how one network is made and computed; `ensemble.py` stacks many.

A weight is (out, in), as in torch. To add one, subclass `Model`: `start` draws the parameters of one seed, `one` is a pure
function of them. A stack is then computed by `torch.func.vmap`; a model may have a faster way, as those here do.
"""

from egalitarian.lab.problems.models.base import Model, Parameters, add_columns, initial
from egalitarian.lab.problems.models.cnn import CNN
from egalitarian.lab.problems.models.layers import Layers
from egalitarian.lab.problems.models.mlp import MLP
from egalitarian.lab.problems.models.transformer import Transformer

__all__ = ["CNN", "MLP", "Layers", "Model", "Parameters", "Transformer", "add_columns", "initial"]
