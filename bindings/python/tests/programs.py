"""What the programs of tests import that run in processes of their own."""

ESTIMATORS = {
    "KMeans": "cluster",
    "PCA": "decomposition",
    "NearestNeighbors": "neighbors",
    "SpectralClustering": "cluster",
    "TopicModel": "topics",
    "TruncatedSVD": "decomposition",
}
"""Each brings scikit-learn, which takes seconds to import."""


def imports(code: str) -> str:
    """The lines that import the estimators which `code` names."""
    return "".join(f"from outcore.{module} import {name}\n" for name, module in ESTIMATORS.items() if name in code)
