"""The solvable toy problem (Section 3 and the equi-distribution appendix): simulation and closed forms side by side.

Letters, as in the paper: eps is the variance of the slow feature, theta the angle of v, s the half-margin of the training
data, eta the step size, zeta = |w(0)|, k the step, w(k) = (mu_k, nu_k). A formula that is wrong in print ends in
`_as_printed`; the corrected one has the plain name.

`sample` draws, `moments` and `problem` hold the constants, `dynamics` steps, `error` measures, `theorem` and
`equidistribution` are the paper's results, `claims` sets each of them against simulation, `curves` prepares the figures.
"""
