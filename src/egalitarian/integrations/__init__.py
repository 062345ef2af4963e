"""EGD in a trainer: a file for each, imported by its own name, since each needs a package that the library does not.

`lightning` and `huggingface` hold callbacks, `accelerate` a function, `tensorboard` a writer of spectra. They attach EGD,
feed its switch-off, and keep its state in the trainer's checkpoints.
"""
