"""Every method with the learning rate and decay that suit it: grids of one size, chosen on validation, fresh seeds."""
