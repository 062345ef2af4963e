"""A user's script, which `make types` checks strictly and a test runs: what users write is typed as it works."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import egalitarian as eg


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.middle = nn.Linear(8, 8)
        self.pi = nn.Linear(8, 2)
        self.v = nn.Linear(8, 1)


def plans(model: Policy) -> list[eg.Plan]:
    names: list[str] = ["pi", "v"]
    modules: list[nn.Linear] = [model.pi, model.v]
    return [
        eg.matrices(model, head=["pi", "v"]),
        eg.matrices(model, head=("pi", model.v)),
        eg.matrices(model, head=names),
        eg.matrices(model, head=modules),
        eg.matrices(model, head=[model.pi.weight, model.v.weight]),
        eg.matrices(model, include=["body*", model.middle], exclude="v"),
    ]


def attached(model: Policy) -> tuple[torch.optim.Optimizer, eg.Attachment]:
    plan = eg.matrices(model, head=["pi", "v"])
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 1e-3}, left={"weight_decay": 0.0}), lr=0.1)
    rule = eg.Until(0.95, mode="max", patience=1, resume=True, margin=0.1)
    return optimizer, eg.attach(optimizer, plan, [eg.GrokfastEMA(), eg.Polar(precision="fast")], until=rule)


def switched(egd: eg.Attachment) -> bool | Tensor:
    active: bool | Tensor = egd.observe(torch.tensor(0.3))
    egd.off()
    egd.on()
    return active


def stepped(model: Policy) -> Tensor:
    optimizer = eg.EGD(eg.matrices(model, head=["pi", "v"]), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model.middle(model.body(torch.ones(1, 4))).sum()
        torch.autograd.backward(loss)
        return loss

    loss: Tensor = optimizer.step(closure)
    schedule.step()
    return loss


def equalised(model: Policy) -> eg.State:
    plan = eg.matrices(model, head=None)
    state: eg.State = eg.equalize_(plan)
    return eg.equalize_(plan, eg.Polar(), state=state)
