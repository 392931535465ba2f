"""Run independent tasks in processes or on Dask."""
