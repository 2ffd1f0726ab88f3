"""Measure the kernels side by side with plain ipykernel, in one run on one machine."""
