"""What clusters reach in the benchmarks of scientific computing: HPL, HPCG and stencils."""
