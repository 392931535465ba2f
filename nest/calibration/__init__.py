"""Fitting the parameters of predictions to measured runs.

Parameters are physical (what a kernel reaches of a peak rate, what the host
takes per kernel) and few; each has a prior from outside the rows. A fit is
the most probable value under priors and rows. A user's own runs are fitted
with that as their prior, wider by how much sources differ.
"""
