"""The project's own kernels for CPUs: C++, and what calls it, each beside its torch twin."""
