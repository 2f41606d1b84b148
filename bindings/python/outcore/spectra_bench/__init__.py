"""The experiment of "BLAS-on-flash" (Subramanya et al., NSDI 2019) on singular values, with `outcore.linalg.svds`.

`corpus` writes word counts of documents, `run` measures a search in a process of its own, ours or a rival's, `topics` a model of
topics, and `figures` draws pairs and budgets against time and passes. `outcore bench-spectra` is all of it.
"""
