"""The steps of the text part by scikit-learn in memory, for comparison.

Run by path, not as a module, so that nothing of outcore is loaded:

    python text_rival.py spec.json

The clock starts after the imports, with the table as plain text on SSD, and stops when every document has its cluster.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import normalized_mutual_info_score
from sklearn.random_projection import GaussianRandomProjection


def run(spec: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        with open(spec["table"], encoding="utf-8", newline="\n") as table:
            sections, texts = zip(*(line.rstrip("\n").split("\t")[1:3] for line in table), strict=True)
        weights = TfidfVectorizer(stop_words="english", sublinear_tf=True, dtype=np.float32).fit_transform(texts)
        projected = GaussianRandomProjection(spec["dimensions"], random_state=spec["seed"]).fit_transform(weights)
        model = KMeans(spec["clusters"], max_iter=spec["rounds"], n_init=1, random_state=spec["seed"])
        labels = model.fit_predict(projected)
    except MemoryError as error:
        return {"memory_error": str(error) or "MemoryError", "work_s": time.perf_counter() - started}
    work_s = time.perf_counter() - started
    return {
        "work_s": work_s,
        "nmi": float(normalized_mutual_info_score(sections, labels)),
        "rounds": int(model.n_iter_),
        "dtype": str(projected.dtype),
    }


if __name__ == "__main__":
    spec = json.loads(Path(sys.argv[1]).read_text())
    Path(spec["result"]).write_text(json.dumps(run(spec)))
