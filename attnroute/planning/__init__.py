"""All groups and phases of a model together: kernels, pages, blocks, layout, CUDA-graph level, capacity."""
