"""The experiment of "Accelerating k-NN Algorithm with Hybrid MPI and OpenSHMEM" (Lin et al., OpenSHMEM 2015) with `outcore knn`.

`workloads` writes stand-ins for its data, `wire` joins namespaces by links of a given rate, `run` starts ranks and measures,
`simulation` says how long rounds take that were not measured, and `figures` draws. `outcore bench-knn` is all of it.
"""
