"""LLVM IR of the micro-kernels, and their plain numpy twins for runs without a compiler."""
