"""EGD in trainers. Import each file by its name, since each needs a package that the library itself does not.

`lightning` and `huggingface` hold callbacks, `accelerate` a function, `tensorboard` a writer of spectra. The first three
attach EGD and keep its state in the trainer's checkpoints. The callbacks also pass metrics to `until`.
"""
