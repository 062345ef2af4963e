"""`egalitarian bench`: what EGD costs on this machine, kernel by kernel, step by step, experiment by experiment."""
