"""Training: an ensemble of seeds as one batch, a method's steps, captured CUDA graphs, measures, and the one loop.

`train(ensemble, stepper)` yields the records of each epoch without end. It stores nothing and prints nothing.
"""

from egalitarian.lab.training.capture import Captured, Eager, MakeSteps, Steps, captured, steps_for, why_eager
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.fourier import Fourier, concentration, fourier_power
from egalitarian.lab.training.loop import AccuracyMeter, Epoch, FullMeter, Meter, Spectra, train
from egalitarian.lab.training.metrics import Sketch, singular_values
from egalitarian.lab.training.stepper import Stepper

__all__ = [
    "AccuracyMeter",
    "Captured",
    "Eager",
    "Ensemble",
    "Epoch",
    "Fourier",
    "FullMeter",
    "MakeSteps",
    "Meter",
    "Sketch",
    "Spectra",
    "Stepper",
    "Steps",
    "captured",
    "concentration",
    "fourier_power",
    "singular_values",
    "steps_for",
    "train",
    "why_eager",
]
